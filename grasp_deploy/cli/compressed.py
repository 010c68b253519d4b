"""What the commands that compress print of their results."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from grasp_deploy.checkpoint.card.quality_verdict import BROKEN_NATS, DROP_IN_NATS, few
from grasp_deploy.cli.console import print_line, stdout
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.stats.wording import amount, listed

MORE_RECOVERY = " More tokens of recovery may bring it nearer to the dense model."


def print_family(members: Sequence[dict[str, Any]], config: CompressConfig, output: Path) -> None:
    """Print a row for the dense model and for each member, and where they lie."""
    from grasp_deploy.report.tables import figure_table

    heads = ("model", "weights,\nMiB", "KV bytes\nper token", "held-out\nloss", "above\ndense")
    dense_loss, tokens = (members[0][name] for name in ("heldout_loss_dense", "heldout_tokens"))
    note = f"loss in nats per token on {_heldout(tokens, config)}{few(tokens)}"
    table = figure_table("Family of budgets", heads, [note] if tokens else [])
    rows = [("dense", members[0]["dense"], dense_loss)]
    rows += [(Path(m["output"]).name, m, _finished_loss(m)) for m in members]
    for name, size, loss in rows:
        losses = ("", "") if loss is None else (f"{loss:.3f}", f"{loss - dense_loss:+.3f}")
        figures = f"{size['weight_bytes'] / 2**20:,.2f}", f"{size['kv_bytes_per_token']:,}"
        table.add_row(Text(name), *figures, *losses)
    broken = [n for n, _, loss in rows if loss is not None and loss - dense_loss >= BROKEN_NATS]
    whole = [name for name, *_ in rows[1:] if name not in broken]
    stdout.print(table)
    if broken:
        print_line(
            f"{listed(broken)} lost {BROKEN_NATS} nats or more even on the calibration's kind of "
            "text: measure before you serve, or keep more"
        )
    name = shlex.quote(str(output / whole[-1])) if whole else ""
    serve = f"; serve a member: grasp-deploy serve {name}" if whole else ""
    print_line(f"wrote {output}{serve}")


def print_compressed(record: dict[str, Any], config: CompressConfig) -> None:
    """Print what was kept, its footprint, the loss on held-out text, and how to serve it."""
    from grasp_deploy.report.tables import footprint_table, layer_table, time_table

    stdout.print(layer_table(record["dense"], record))
    stdout.print(footprint_table({"dense": record["dense"], "pruned": record}, "What it takes"))
    kept, limit = amount(record["kept_cost"]), amount(record["budget"])
    print_line(
        f"budget ({record['cost_model']}): {kept} of {limit} used, "
        f"{record['ratios']['prunable_cost']:.2%} of the prunable cost"
    )
    before, after = (size["tensor_parallel_sizes"] for size in (record["dense"], record))
    if after == [1] != before:
        print_line(
            f"tensor parallelism: 1 alone divides every layer, where {listed(before)} divided the "
            f"dense ones; --tensor-parallel {before[1]} would keep that size possible"
        )
    if "time" in record:
        stdout.print(time_table(record["time"]))
    loss = _finished_loss(record)
    if loss is not None:
        recovered = f", {loss:.3f} recovered" if record.get("recovery") else ""
        tokens = record["heldout_tokens"]
        print_line(
            f"loss on {_heldout(tokens, config)}, nats per token: "
            f"{record['heldout_loss_dense']:.3f} dense, {record['heldout_loss_pruned']:.3f} "
            f"pruned{recovered}{few(tokens)}; other text may lose more: grasp-deploy evaluate "
            "compare"
        )
    if record.get("recovery"):
        print_line(_recovery_sentence(record["recovery"]))
    elif "recovery" in record:
        print_line("recovery won nothing: the weights are those that the scales left")
    if "bound" in record:
        print_line(_bound_sentence(record["bound"]) + few(record["heldout_tokens"]))
    output = record["output"]
    lost = 0.0 if loss is None else loss - record["heldout_loss_dense"]
    advice = MORE_RECOVERY if config.recover is not None else _recovery_advice(output, config)
    if "experts_per_token" in record["dense"]:  # models with experts cannot recover
        advice = ""
    _print_ending(output, lost, serve_command(Path(output), config), advice)


def print_recovered(record: dict[str, Any]) -> None:
    """Print what a recovery won on held-out text, and how to serve the result."""
    won, output = record["recovery"], record["output"]
    print_line(_recovery_sentence(won))
    print_line(
        f"loss on {won['heldout_tokens']:,} held-out tokens, nats per token: "
        f"{won['loss_dense']:.3f} dense, {won['loss_before']:.3f} before, {won['loss_after']:.3f} "
        f"recovered{few(won['heldout_tokens'])}; other text may lose more: grasp-deploy evaluate "
        "compare"
    )
    lost = won["loss_after"] - won["loss_dense"]
    _print_ending(output, lost, shlex.join(["grasp-deploy", "serve", output]), MORE_RECOVERY)


def _recovery_advice(output: str, config: CompressConfig) -> str:
    """A sentence on what recovery wins, with its command, which must name local texts again."""
    from grasp_deploy.data import calibration_sources

    is_local = any(text.is_local for text in calibration_sources(config.calibration))
    words = ["grasp-deploy", "heal", output, *(text_options(config) if is_local else [])]
    command = shlex.join([*words, "--output", f"{output}-healed"])
    return (
        " Recovery may win some of it back: a million tokens won 23 to 28 % on a model of 135 "
        f"million parameters, no accuracy on tasks ({command})."
    )


def text_options(config: CompressConfig) -> list[str]:
    """The options that name a run's calibration text again."""
    given = [("--calibration", text) for text in config.calibration]
    given.append(("--calibration-split", config.calibration_split or ""))
    given.append(("--calibration-column", config.calibration_column or ""))
    return [word for pair in given if pair[1] for word in pair]


def _print_ending(output: str, lost: float, command: str, advice: str) -> None:
    """Print where a model lies, what it lost by the card's thresholds, and how to serve it."""
    if lost >= BROKEN_NATS:
        print_line(
            f"wrote {output}; it lost {lost:.2f} nats even on the kind of text that it learnt "
            f"from. Keep more.{advice} Measure it before you serve it (grasp-deploy evaluate "
            f"compare): {command}"
        )
    elif lost >= DROP_IN_NATS:
        print_line(
            f"wrote {output}; it lost {lost:.2f} nats on the kind of text that it learnt from, and "
            f"is no drop-in.{advice} Serve it by {command}"
        )
    else:
        print_line(f"wrote {output}; serve it: {command}")


def _heldout(tokens: int, config: CompressConfig) -> str:
    """The text that losses are stated on, and whether it flatters."""
    from grasp_deploy.data import calibration_sources
    from grasp_deploy.data.mixture import shares

    sources = calibration_sources(config.calibration)
    counts = shares([source.weight for source in sources], config.sequences)
    # A text of one sequence holds nothing out.
    is_own = all(s.is_own or n < 2 for s, n in zip(sources, counts, strict=True))
    what = "the model's own text, which flatters" if is_own else "calibration text"
    return f"{tokens:,} held-out tokens of {what}"


def _finished_loss(record: dict[str, Any]) -> float | None:
    """The held-out loss of what was written; None where nothing was held out."""
    loss: float | None = record["heldout_loss_pruned"]
    return record["recovery"]["loss_after"] if record.get("recovery") else loss


def _recovery_sentence(won: dict[str, Any]) -> str:
    """A sentence on what a recovery won, in the divergence by which its weights were chosen."""
    return (
        f"recovered on {won['tokens']:,} tokens in {won['seconds']:,.0f} s: on held-out text the "
        f"divergence from the dense model went from {won['divergence_before']:.4f} to "
        f"{won['divergence_after']:.4f} nats per token; recovery lowers this divergence, and the "
        "loss on the text itself may rise"
    )


def serve_command(output: Path, config: CompressConfig) -> str:
    """The command that serves a checkpoint, with the flags of the load that it was fitted to."""
    command = ["grasp-deploy", "serve", str(output)]
    if config.gpu_memory is not None:
        from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
        from grasp_deploy.compression.budget_options import load_of, room_of
        from grasp_deploy.fit.memory import serve_flags

        shape = model_shape(read_config(output))
        command += ["--", *serve_flags(shape, load_of(config), room_of(config))]
    return shlex.join(command)


def _bound_sentence(bound: dict[str, Any]) -> str:
    """A sentence on what the kept share costs under a bound, and what the next would have cost."""
    from grasp_deploy.stats.wording import plus_minus

    def cost(step: dict[str, Any]) -> str:
        return f"{plus_minus(step['excess'], step['excess_error'], '.4f', '+')} nats per token"

    begin = f"bound of {bound['nats']:.4f} nats: keep {bound['keep']:g} costs {cost(bound)} on it"
    if bound["next"] is None:
        return f"{begin}; no smaller budget is possible"
    over = ", over it with that error" if bound["next"]["excess"] <= bound["nats"] else ""
    return f"{begin}; keep {bound['next']['keep']:g} would have cost {cost(bound['next'])}{over}"
