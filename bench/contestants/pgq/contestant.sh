# PgQ: a batch is what lies between two ticks, here of 500 events each.  Commits
# are flushed.

contestant_defaults

start_up() {
    need_packages postgresql-15-pgq3
    # The private installation was linked before.
    link_entries "$("$PG_CONFIG" --sharedir)/extension" "$scratch/plain$("$PG_CONFIG" --sharedir)/extension"
    link_entries "$("$PG_CONFIG" --pkglibdir)" "$scratch/plain$("$PG_CONFIG" --pkglibdir)"
    query -c "CREATE EXTENSION pgq" >/dev/null
}

# load MESSAGES: once; afterwards the consumer goes back to the first tick.
load() {
    if [ "$(cat "$scratch/pgq.loaded" 2>/dev/null)" = "$1" ]; then
        query -c "SELECT pgq.unregister_consumer('bench', 'c')" >/dev/null
        query -c "SELECT pgq.register_consumer_at('bench', 'c', 1)" >/dev/null
        return
    fi
    query >/dev/null <<SQL
SELECT pgq.create_queue('bench');
SELECT pgq.set_queue_config('bench', 'ticker_max_count', '500'),
    pgq.set_queue_config('bench', 'ticker_max_lag', '100 ms');
SELECT pgq.register_consumer('bench', 'c');
DO \$\$
BEGIN
    FOR i IN 1 .. $1 / 500 LOOP
        PERFORM pgq.insert_event('bench', 't', encode(substr(value, 1, 500), 'hex'))
        FROM bench_values WHERE n < 500;
        COMMIT;
        PERFORM pgq.ticker('bench');
        COMMIT;
    END LOOP;
END \$\$;
CHECKPOINT;
SQL
    echo "$1" >"$scratch/pgq.loaded"
}

# consume MESSAGES: all of them, by one consumer, messages a second
consume() {
    local file
    file=$(script pgq <<SQL
SELECT pgq.next_batch('bench', 'c') AS batch \\gset
SELECT array_agg(ev_id) AS ids, sum(length(ev_data)) AS bytes FROM pgq.get_batch_events(:batch) \\gset
SELECT pgq.finish_batch(:batch);
SQL
    )
    times "$(rate_of "$file" $(($1 / 500 - 2)))" 500
}
