#!/usr/bin/env bash
# Forebay on a real parallel file system: GlusterFS from Debian's packages, four bricks on this machine, files sharded over them.
#
#   make test-gluster
#
# In order: a network namespace with an address of its own (gluster refuses 127.x), glusterd in it, a volume of four bricks,
# the client's mount; then tests/gluster/check.py reads through Forebay, and a brick is killed in mid-read. Everything is
# taken down again at the end, however it ends. Where something is missing that this cannot do without, it says what and
# ends with 0: skipped. The packages are installed where they are missing, unless FOREBAY_GLUSTER_INSTALL=0.
set -euo pipefail

HERE=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
PYTHON=${PYTHON:-$ROOT/.venv/bin/python}
ADDRESS=10.99.0.1
SPACE=forebay-gluster-$$
VOLUME=forebay$$

skip() {
    echo "test-gluster: skipped: $*"
    exit 0
}

[ "$(id -u)" = 0 ] || skip "it needs root, to make a network namespace and to mount"
[ -c /dev/fuse ] && (: <>/dev/fuse) 2>/dev/null || skip "/dev/fuse cannot be opened"
for command in ip nsenter mountpoint; do
    command -v "$command" >/dev/null || skip "$command is not installed (iproute2, util-linux)"
done
ip netns add "$SPACE" 2>/dev/null || skip "network namespaces cannot be made here"
ip netns del "$SPACE"
if ! command -v glusterd >/dev/null || ! command -v glusterfs >/dev/null; then
    [ "${FOREBAY_GLUSTER_INSTALL:-1}" = 1 ] || skip "glusterfs-server and glusterfs-client are not installed"
    command -v apt-get >/dev/null || skip "GlusterFS is not installed, and there is no apt-get"
    echo "== install glusterfs-server and glusterfs-client"
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends glusterfs-server glusterfs-client >/dev/null ||
        skip "apt-get could not install glusterfs-server and glusterfs-client"
fi
if pgrep -x glusterd >/dev/null; then
    skip "a glusterd runs on this machine already; this test would meet its configuration"
fi

PLACE=$(mktemp -d /var/tmp/forebay-gluster-XXXXXX)
# Not `ip netns exec`: it makes a mount namespace too, in which the mount would be invisible to us.
INSIDE="nsenter --net=/run/netns/$SPACE"
VOLUMES="$INSIDE timeout 60 gluster --mode=script volume"
DAEMON=

clean() {
    local status=$?
    trap - EXIT INT TERM
    set +e
    if mountpoint -q "$PLACE/mount"; then
        umount "$PLACE/mount" 2>/dev/null || umount --lazy "$PLACE/mount"
    fi
    if [ -n "$DAEMON" ]; then
        $VOLUMES stop "$VOLUME" force >/dev/null 2>&1
        $VOLUMES delete "$VOLUME" >/dev/null 2>&1
        kill "$DAEMON" 2>/dev/null
        wait "$DAEMON" 2>/dev/null
    fi
    # What gluster started and did not end lives in our network namespace, and nobody else does.
    for process in $(ip netns pids "$SPACE" 2>/dev/null); do
        kill -9 "$process" 2>/dev/null
    done
    ip netns del "$SPACE" 2>/dev/null
    if [ "$status" != 0 ]; then
        echo "test-gluster: the end of glusterd's log:"
        tail -n 20 "$PLACE/glusterd.log" 2>/dev/null
    fi
    rm -rf "$PLACE"
    exit "$status"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "== start GlusterFS: four bricks, shards of 4 MB"
mkdir -p "$PLACE"/brick{1,2,3,4} "$PLACE/mount" "$PLACE/state"
ip netns add "$SPACE"
ip -n "$SPACE" link set lo up
ip -n "$SPACE" addr add "$ADDRESS/32" dev lo
cat >"$PLACE/glusterd.vol" <<VOL
volume management
    type mgmt/glusterd
    option working-directory $PLACE/state
    option transport-type socket
    option transport.socket.listen-port 24007
end-volume
VOL
$INSIDE glusterd --no-daemon --volfile="$PLACE/glusterd.vol" --log-file="$PLACE/glusterd.log" --pid-file="$PLACE/glusterd.pid" &
DAEMON=$!
for _ in $(seq 150); do
    $VOLUMES info >/dev/null 2>&1 && break
    kill -0 "$DAEMON" 2>/dev/null || { echo "test-gluster: glusterd ended"; exit 1; }
    sleep 0.2
done
$VOLUMES create "$VOLUME" transport tcp "$ADDRESS:$PLACE/brick1" "$ADDRESS:$PLACE/brick2" \
    "$ADDRESS:$PLACE/brick3" "$ADDRESS:$PLACE/brick4" force
$VOLUMES set "$VOLUME" features.shard on
$VOLUMES set "$VOLUME" features.shard-block-size 4MB
$VOLUMES start "$VOLUME"
$INSIDE glusterfs --volfile-server="$ADDRESS" --volfile-id="$VOLUME" --log-file="$PLACE/client.log" "$PLACE/mount"
mountpoint "$PLACE/mount"

"$PYTHON" "$HERE/check.py" --scratch "$PLACE" --mount "$PLACE/mount" \
    --bricks "$VOLUMES status $VOLUME --xml" --restart "$VOLUMES start $VOLUME force"
echo "test-gluster: passed"
