# The first process of a rehearsal's room, or of one of its hosts; see rehearsal.py.
#
#   rehearsal.sh room HOSTS RATE LATENCY SEGMENT HIDDEN [FOLDER...]
#   rehearsal.sh host NAME HIDDEN [FOLDER...]
#
# RATE and LATENCY are words of tc, SEGMENT is words of ip, HIDDEN is words of env; each may be empty.
# Every FOLDER stays visible under the private /tmp. Each host prints a line when it is up.
set -eu

private_folders() {
  mount -t tmpfs -o mode=1777 tmpfs /tmp
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  for folder; do
    mkdir -p "$folder"
    mount --rbind "/run/kept$folder" "$folder"
  done
}

room() {
  hosts=$1 rate=$2 latency=$3 segment=$4 hidden=$5
  shift 5
  # The pipe of the program that made the room: at its end this process exits, and the kernel ends all.
  exec 3<&0 </dev/null
  { read -r _ <&3 || :; } &
  end=$!
  mount -t tmpfs tmpfs /run
  mkdir /run/netns /run/rehearsal
  for folder; do
    mkdir -p "/run/kept$folder"
    mount --rbind "$folder" "/run/kept$folder"
  done
  private_folders "$@"
  names "$hosts" >/run/rehearsal.hosts
  mount --bind /run/rehearsal.hosts /etc/hosts
  # No name may be looked up outside.
  [ ! -e /etc/resolv.conf ] || mount --bind /dev/null /etc/resolv.conf
  hostname rehearsal
  ip link set lo up
  ip link add eth0 type bridge
  ip address add 10.77.0.1/24 dev eth0
  ip link set eth0 up
  for number in $(seq "$hosts"); do
    link "$number" "rehearsal-$number"
    {
      ip netns exec "rehearsal-$number" \
        unshare --uts --mount --ipc --pid --fork --kill-child \
        sh "$0" host "rehearsal-$number" "$hidden" "$@" || echo failed
    } 3<&- &
  done
  wait $end
}

names() {
  echo 127.0.0.1 localhost
  echo 10.77.0.1 rehearsal
  for number in $(seq "$1"); do
    echo "10.77.0.$((number + 10)) rehearsal-$number"
  done
}

link() {
  ip netns add "$2"
  ip link add "port$1" type veth peer name eth0 netns "$2"
  ip link set "port$1" master eth0 up
  ip -n "$2" link set lo up
  ip -n "$2" address add "10.77.0.$(($1 + 10))/24" dev eth0
  ip -n "$2" link set eth0 up
  parent=root
  if [ "$latency" ]; then
    tc -n "$2" qdisc add dev eth0 root handle 1: $latency
    parent='parent 1:1'
  fi
  if [ "$segment" ]; then
    ip -n "$2" link set dev eth0 $segment
    ip link set dev "port$1" $segment
  fi
  if [ "$rate" ]; then
    tc -n "$2" qdisc add dev eth0 $parent handle 2: $rate
    tc qdisc add dev "port$1" root $rate
  fi
}

host() {
  name=$1 hidden=$2
  shift 2
  read -r pid _ </proc/self/stat # as the room sees this process
  mount -t proc proc /proc
  private_folders "$@"
  hostname "$name"
  # A folder of this machine that TMPDIR names need not be in the host's private /tmp.
  echo "exec nsenter -t $pid -m -u -i -n -p -- env -u TMPDIR XDG_CACHE_HOME=/tmp/cache $hidden \"\$@\"" \
    >"/run/rehearsal/$name"
  echo up
  # Not `exec sleep`: the first process of a host reaps its orphans.
  sleep infinity &
  wait
}

"$@"
