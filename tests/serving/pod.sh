#!/bin/bash
# Run a command as the pod's container would: as user 10001 of group 0, without capabilities, with no
# network but its own 127.0.0.1, in a root where only home, /tmp and /dev/shm can be written.
#
#     unshare --mount --net --pid --fork --kill-child pod.sh ROOT MODEL VISIBLE... -- COMMAND...
#
# ROOT: an empty folder. MODEL becomes /model. VISIBLE: folders that keep their names.
set -euo pipefail
root=$1 model=$2
shift 2

show() { # a folder under a name, read only
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
}

mount -t tmpfs tmpfs "$root"
cp -P /bin /lib* /sbin "$root/" # links into /usr
mkdir -p "$root"/{dev,proc,tmp,home/grasp}
for folder in /etc /sys /usr; do show "$folder" "$folder"; done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
for folder in /dev/shm /tmp /home/grasp; do mount -t tmpfs -o mode=1777 tmpfs "$root$folder"; done
show "$model" /model
while [[ $1 != -- ]]; do show "$1" "$1"; shift; done
shift
mount -o remount,ro "$root"
ip link set lo up
cd /
exec chroot "$root" setpriv --reuid 10001 --regid 0 --clear-groups --bounding-set=-all \
    --inh-caps=-all --no-new-privs "$@"
