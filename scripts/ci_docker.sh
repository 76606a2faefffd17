#!/usr/bin/env bash
# Gives a bare Debian machine (root, no engine, no registry) a Docker engine and the image openmle/sandbox:cpu.
# Skips whatever exists. Ends with 0 and says so when an engine cannot be had: the tests that need one are then skipped.
#   DOCKERD_LOG   where the engine writes   (default: /tmp/dockerd.log)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
base=openmle/base:local
image=openmle/sandbox:cpu
log=${DOCKERD_LOG:-/tmp/dockerd.log}

no_engine() {
    echo "no Docker engine here ($*); tests that need one will be skipped" >&2
    exit 0
}

[ "$(id -u)" = 0 ] || docker info >/dev/null 2>&1 || no_engine "not root, and none is running"

missing=()
command -v dockerd >/dev/null || missing+=(docker.io)
command -v debootstrap >/dev/null || missing+=(debootstrap)
if [ ${#missing[@]} -gt 0 ] && ! docker image inspect "$image" >/dev/null 2>&1; then
    command -v apt-get >/dev/null || no_engine "neither ${missing[*]} nor apt-get"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" iptables; } >&2 ||
        no_engine "apt-get cannot install ${missing[*]}"
fi

# Debian's own client matches its engine and builds without buildx.
docker=docker
[ -x /usr/bin/docker ] && docker=/usr/bin/docker

if ! "$docker" info >/dev/null 2>&1; then
    if ! pgrep -x dockerd >/dev/null; then
        echo "starting dockerd, log in $log" >&2
        nohup dockerd >>"$log" 2>&1 </dev/null &
    fi
    for _ in $(seq 120); do
        "$docker" info >/dev/null 2>&1 && break
        pgrep -x dockerd >/dev/null || break
        sleep 0.5
    done
    "$docker" info >/dev/null 2>&1 || no_engine "dockerd did not come up: $(tail -n 1 "$log")"
fi

if "$docker" image inspect "$image" >/dev/null 2>&1; then
    echo "$image exists" >&2
    exit 0
fi

if ! "$docker" image inspect "$base" >/dev/null 2>&1; then
    # shellcheck source=/dev/null
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(awk '$1 == "URIs:" { print $2; exit }' /etc/apt/sources.list.d/*.sources 2>/dev/null || true)
    [ -n "$mirror" ] || mirror=$(awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) { print $i; exit } }' /etc/apt/sources.list)
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    echo "bootstrapping $base ($suite); this takes some minutes" >&2
    debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates "$suite" "$root" "$mirror" >&2
    # What this machine trusts, the build must trust: pip fetches through the same network.
    trusted=/etc/ssl/certs/ca-certificates.crt
    if [ -f "$trusted" ]; then
        cp "$trusted" "$root$trusted"
        printf '[global]\ncert = %s\n' "$trusted" >"$root/etc/pip.conf"
    fi
    tar -C "$root" --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' \
        --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' -c . |
        "$docker" import - "$base" >&2
fi

DOCKER=$docker BASE_IMAGE=$base IMAGE=$image "$here/scripts/build_image.sh" >&2
