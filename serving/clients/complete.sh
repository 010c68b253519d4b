#!/usr/bin/env bash
# Ask a running server for one completion with curl; prints the server's JSON.
#
#     serving/clients/complete.sh [BASE_URL] [MODEL] [PROMPT]
#
# MODEL is the first one that the server lists, unless named. VLLM_API_KEY is sent if it is set.
set -euo pipefail

base_url=${1:-http://127.0.0.1:8000}
base_url=${base_url%/}
model=${2:-}
prompt=${3:-Return a list of}

quote() { # a one-line string as a JSON string
    local text=${1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}

ask() { # the key goes by a file, since all can see the arguments of a process
    curl --silent --show-error --fail-with-body \
        --header @<(printf '%s' "${VLLM_API_KEY:+Authorization: Bearer $VLLM_API_KEY}") "$@"
}

if [[ -z $model ]]; then
    models=$(ask "$base_url/v1/models")
    if ! [[ $models =~ \"id\":\ *\"([^\"]*)\" ]]; then # the leftmost match is the first model
        echo "No OpenAI server answers at $base_url: it lists no model" >&2
        exit 1
    fi
    model=${BASH_REMATCH[1]}
fi

ask "$base_url/v1/completions" \
    --header 'Content-Type: application/json' \
    --data @- <<JSON | tr -d '\000-\010\013-\037\177' # what would act on the terminal
{"model": $(quote "$model"), "prompt": $(quote "$prompt"), "max_tokens": 48, "temperature": 0}
JSON
echo
