# A Redis stream with a consumer group, AOF every second: a crash may lose the
# last second, messages and acknowledgements.  Read by a client in C.

contestant_defaults

start_up() {
    need_packages redis-server libhiredis-dev
    mkdir -p "$scratch/redis"
    chown "$test_user" "$scratch/redis"
    as_user redis-server --port 0 --unixsocket "$scratch/redis/socket" --dir "$scratch/redis" \
        --appendonly yes --appendfsync everysec --save '' --daemonize yes \
        --logfile "$scratch/redis/log" >/dev/null
    until redis-cli -s "$scratch/redis/socket" ping >/dev/null 2>&1; do sleep 0.1; done
}

shut_down() {
    redis-cli -s "$scratch/redis/socket" shutdown nosave >/dev/null 2>&1
}

stream() {
    "$(client "$contestant/stream.c" -lhiredis)" "$scratch/redis/socket" "$@"
}

# load MESSAGES: once; afterwards the group goes back to the start.
load() {
    if [ "$(cat "$scratch/redis.loaded" 2>/dev/null)" != "$1" ]; then
        redis-cli -s "$scratch/redis/socket" del bench >/dev/null
        stream load "$1"
        echo "$1" >"$scratch/redis.loaded"
    fi
    redis-cli -s "$scratch/redis/socket" xgroup destroy bench g >/dev/null 2>&1
    redis-cli -s "$scratch/redis/socket" xgroup create bench g 0 >/dev/null
}

# consume BATCH CLIENTS plain|chained: messages a second
consume() {
    stream "$3" "$1" "$2" "$seconds"
}
