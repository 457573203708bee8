#!/usr/bin/env bash
# A cluster in namespaces of mounts, processes, hosts, networks and cgroups: pid 1 of all of it.
# When this process is killed, the kernel kills everything else, and mounts and networks are gone.
#
#     room.sh FOLDER CGROUP ADDRESSES NODE...
#
# FOLDER has etc/slurm.conf, hosts and munge.key. CGROUP is a freezer of this cluster alone, or empty.
# ADDRESSES are the first three numbers of the network: "198.18.7".
set -euo pipefail

folder=$1 cgroup=$2 addresses=$3
shift 3
cd "$folder"
hostname login
mount -t tmpfs tmpfs /run
mkdir /run/netns
mount --bind etc /etc/slurm
mount --bind hosts /etc/hosts
if [ -n "$cgroup" ]; then  # Slurm sees its own freezer as the only one
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mkdir /sys/fs/cgroup/freezer
    mount -t cgroup -o freezer freezer /sys/fs/cgroup/freezer
fi

ip link set lo up
ip link add switch type bridge
ip address add "$addresses.254/24" dev switch
ip link set switch up
number=0
for node in "$@"; do
    number=$((number + 1))
    ip netns add "$node"
    ip link add "$node" type veth peer name eth0 netns "$node"
    ip link set "$node" master switch up
    ip -n "$node" link set lo up
    ip -n "$node" address add "$addresses.$number/24" dev eth0
    ip -n "$node" link set eth0 up
done

munged --foreground --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munged.pid" --seed-file="$folder/munge.seed" > munged.log 2>&1 &
slurmctld -D > slurmctld.log 2>&1 &

# A node is pid 1 of its processes: they die with it.
begin() {
    nsenter --net="/run/netns/$1" unshare --uts --pid --fork --mount-proc --kill-child \
        bash -c "hostname $1; slurmd -D > slurmd-$1.log 2>&1 & wait" &
    echo $! > "$1.pid"
}

# Orders, one a line: "on NODE" switches a node on, "off NODE" switches it off.
for node in "$@"; do
    begin "$node"
done
echo ready
while read -r order node; do
    if [ "$order" = on ]; then
        begin "$node"
    else
        kill -KILL "$(< "$node.pid")"
        wait "$(< "$node.pid")" || true
    fi
    echo "$node is $order"
done
