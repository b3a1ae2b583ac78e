#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# A Slurm cluster on one machine for tests and demonstrations: nodes are pid, network, host name and mount namespaces.
#
#   cluster.sh start DIRECTORY NODES     a controller and so many nodes, of two GPUs each; needs root
#   cluster.sh fail DIRECTORY NODE       the node loses its power
#   cluster.sh mend DIRECTORY NODE       and is there again
#   cluster.sh cut DIRECTORY NODE        the node's network is gone; what runs there runs on
#   cluster.sh join DIRECTORY NODE       and is there again
#   cluster.sh stop DIRECTORY
#
# STASIS_SLURM is the prefix of Slurm (`cargo xtask setup --slurm`). Programs of Slurm's are then used with
# SLURM_CONF=DIRECTORY/slurm.conf and PATH=$STASIS_SLURM/bin:$PATH.
set -eu

act=$1 directory=$2
# An address of its own for each cluster, 10.97.N.0/24, and a port: a controller listens at all addresses of the machine.
sum=$(printf %s "$directory" | cksum | cut -d' ' -f1)
network=10.97.$((sum % 250))
port=$((17100 + sum % 250))
bridge=sl$sum

configure() {
    mkdir -p "$directory/state"
    : > "$directory/gpu0"
    : > "$directory/gpu1"
    echo "Name=gpu Type=soft File=$directory/gpu[0-1]" > "$directory/gres.conf"
    cat > "$directory/slurm.conf" <<END
ClusterName=stasis
SlurmctldHost=$(hostname)($network.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=cred_expire=10,socket=$directory/munge.socket
CredType=cred/munge
PluginDir=$STASIS_SLURM/plugins
MailProg=/bin/true
StateSaveLocation=$directory/state
SlurmdSpoolDir=$directory/spool-%n
SlurmctldPidFile=$directory/slurmctld.pid
SlurmdPidFile=$directory/%n.pid
SlurmctldLogFile=$directory/slurmctld.log
SlurmdLogFile=$directory/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2,requeue_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=10
SlurmdTimeout=10
ReturnToService=2
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
GresTypes=gpu
END
    for node in $(seq "$nodes"); do
        echo "NodeName=node$node NodeAddr=$network.1$node Port=17001 CPUs=2 Gres=gpu:soft:2" >> "$directory/slurm.conf"
    done
    cat >> "$directory/slurm.conf" <<END
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=30 MaxTime=INFINITE
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
END
}

# A daemon that outlives this script, without its descriptors: whoever reads its output sees an end.
daemon() {
    log=$1
    shift
    setsid "$@" < /dev/null > "$log" 2>&1 &
}

# What a node does before its slurmd: Slurm looks its own name up, and a loopback of one address is no network to it.
begin_node='ip link set lo up; ip addr add 127.0.0.2/8 dev lo; hostname "$1"
while ! ip addr add "$2/24" dev eth0 2> /dev/null; do sleep 0.05; done; ip link set eth0 up
exec "$STASIS_SLURM/sbin/slurmd" -N "$1" -D -d "$STASIS_SLURM/sbin/slurmstepd"'

start_node() {
    number=${1#node}
    mkdir -p "$directory/spool-$1"
    daemon "$directory/$1.out" unshare --pid --net --uts --fork --kill-child --mount-proc -- \
        sh -c "$begin_node" sh "$1" "$network.1$number"
    echo $! > "$directory/$1.unshare"
    # The first process of the namespaces, once it is there.
    while ! inside=$(cat "/proc/$!/task/$!/children" 2> /dev/null) || [ -z "$inside" ]; do sleep 0.05; done
    ip link delete "$bridge-$number" 2> /dev/null || :
    ip link add "$bridge-$number" type veth peer name eth0 netns "${inside% }"
    ip link set "$bridge-$number" master "$bridge" up
}

# Both commands fail where the node has failed before.
fail_node() {
    kill -KILL "$(cat "$directory/$1.unshare")" 2> /dev/null || :
    ip link delete "$bridge-${1#node}" 2> /dev/null || :
}

stop() {
    for node in "$directory"/node*.unshare; do
        [ -e "$node" ] || continue
        node=${node##*/}
        fail_node "${node%.unshare}"
    done
    for daemon in slurmctld munged; do
        kill -KILL "$(cat "$directory/$daemon.pid")" 2> /dev/null || :
    done
    ip link delete "$bridge" 2> /dev/null || :
}

export SLURM_CONF="$directory/slurm.conf"
case $act in
start)
    nodes=$3
    configure
    trap 'stop' EXIT
    ip link add "$bridge" type bridge
    ip addr add "$network.1/24" dev "$bridge"
    ip link set "$bridge" up
    # Who says who he is, has it from munged: every user of the machine reaches the bridge.
    (umask 077 && head -c 128 /dev/urandom > "$directory/munge.key")
    daemon "$directory/munged.out" "$STASIS_SLURM/sbin/munged" --foreground --force --key-file "$directory/munge.key" \
        --socket "$directory/munge.socket" --pid-file "$directory/munged.pid" --log-file "$directory/munged.log" \
        --seed-file "$directory/munged.seed"
    while [ ! -S "$directory/munge.socket" ]; do sleep 0.05; done
    daemon "$directory/slurmctld.out" "$STASIS_SLURM/sbin/slurmctld" -i -D
    controller=$!
    for node in $(seq "$nodes"); do
        start_node "node$node"
    done
    for try in $(seq 600); do
        [ "$("$STASIS_SLURM/bin/sinfo" -h -t idle -N -p low 2> /dev/null | wc -l)" = "$nodes" ] && break
        # A controller that cannot listen ends.
        [ "$try" = 600 ] || ! kill -0 "$controller" 2> /dev/null && { cat "$directory"/*.out >&2; exit 1; }
        sleep 0.1
    done
    trap - EXIT
    ;;
fail) fail_node "$3" ;;
mend)
    fail_node "$3"
    start_node "$3"
    ;;
cut) ip link set "$bridge-${3#node}" down ;;
join) ip link set "$bridge-${3#node}" up ;;
stop) stop ;;
*)
    echo "$act is not understood: start, fail, mend, cut, join or stop" >&2
    exit 2
    ;;
esac
