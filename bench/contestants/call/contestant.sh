# What a call costs at least: SELECT 1, and a function that returns one row of
# the shape of consume's, with a value of the same 1,000 bytes.

contestant_defaults

start_up() {
    local value
    value=$(query -c "SELECT value FROM bench_values WHERE n = 1")
    query <<SQL
CREATE FUNCTION bench_stub(topic regclass, OUT receipt text, OUT partition integer, OUT msg_offset bigint,
    OUT produced_at timestamptz, OUT deliveries integer, OUT key text, OUT value bytea, OUT headers jsonb)
LANGUAGE plpgsql AS \$\$
BEGIN
    receipt := 'AS43_NOm4heHAAAAAQAAAAEAAAAAAAABb09Q0UdDdWWs';
    partition := 0;
    msg_offset := 1;
    produced_at := '2000-01-01';
    deliveries := 1;
    value := '$value';
END \$\$;
SQL
}

# select_one CLIENTS: calls a second
select_one() {
    rate "$(echo 'SELECT 1;' | script select_one)" "$1"
}

stub() {
    rate "$(echo "SELECT receipt, value FROM bench_stub('bench_topic') \\gset" | script stub)" "$1"
}
