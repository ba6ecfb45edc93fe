# A message a transaction, and a hundred; each commit is flushed.  A topic takes an
# INSERT, too: that is what an INSERT into a heap table can be compared with, as
# narad.produce() tells where the message is, and is a call.

bench_produce() {
    local clients
    run narad load 1000 8
    for clients in 1 8 32; do
        compare "produce, 1 a transaction, $clients clients, messages/s" "INSERT into a heap table" 0.97 \
            "run narad produce 1 $clients" "run heap produce 1 $clients"
        compare "the same by INSERT into the topic" "the same" 0.97 \
            "run narad produce 1 $clients insert" "run heap produce 1 $clients"
    done
    for clients in 1 8 32; do
        compare "produce_batch of 100, $clients clients, messages/s" "INSERT of 100 rows" "$([ "$clients" = 8 ] && echo 1.2)" \
            "run narad produce 100 $clients" "run heap produce 100 $clients"
    done
}
