#!/usr/bin/env bash
# Installs Slurm and munge from Debian or Ubuntu for tests/e2e/slurm, where nothing else can be meant by it:
# as root, in a container without an init system. No service is started. Otherwise it says what to do.
set -euo pipefail

install="apt-get install --no-install-recommends slurm-wlm munge"
if command -v slurmctld slurmd munged > /dev/null; then
    exit 0
elif [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null || [ -d /run/systemd/system ]; then
    echo "the tests with Slurm are skipped; to run them: $install (it may start services), as root" >&2
    exit 0
fi

policy=/usr/sbin/policy-rc.d  # what Debian asks before it starts a service
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
    trap 'rm "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { apt-get update && $install --yes; } > "$log" 2>&1; then
    echo "the tests with Slurm are skipped: $install failed: $(tail -n 1 "$log")" >&2
fi
rm "$log"
