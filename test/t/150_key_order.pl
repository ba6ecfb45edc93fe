# Copyright (c) 2026, the Narad authors
#
# Order by key under load: 32 sessions against 10 keys in 4 partitions, with
# acks, nacks and rollbacks: never two messages of a key of a partition in
# flight, never one before an earlier one of its key was settled, none lost.
# After restarts and crashes, too.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('key_order', conf => [ 'fsync = off', 'autovacuum = off', 'max_connections = 60' ]);
$node->start;
my $s = narad_session($node);
$s->rows(q{CREATE EXTENSION narad});
$s->rows(q{SELECT narad.create_topic('ordered', partitions => 4, ordering => 'key')});
$s->rows(q{CREATE SEQUENCE clock});

# What consumers saw, by a clock that all of them read: when they got a message
# and when they were about to let it go.
$s->rows(q{CREATE TABLE audit (got bigint, gone bigint, partition int, key text, msg_offset bigint, fate text)});
$s->rows(q{CREATE TABLE produced (partition int, msg_offset bigint)});
$s->rows(q{CREATE PROCEDURE round() LANGUAGE plpgsql AS $$
DECLARE
	m narad.message;
	chance float := random();
	got bigint;
BEGIN
	IF random() < 0.9 THEN
		INSERT INTO produced SELECT * FROM narad.produce('ordered', '1', key => 'k' || (random() * 9)::int);
		COMMIT;
	END IF;
	SELECT * INTO m FROM narad.consume('ordered', visibility_timeout => '1 hour');
	IF m.receipt IS NULL THEN
		RETURN;
	END IF;
	got := nextval('clock');
	IF chance < 0.1 THEN
		-- The audit row would go with the rollback; the message comes back.
		PERFORM nextval('clock');
		ROLLBACK;
		RETURN;
	END IF;
	COMMIT;
	INSERT INTO audit VALUES (got, nextval('clock'), m.partition, m.key, m.msg_offset, CASE WHEN chance < 0.25 THEN 'nack' ELSE 'ack' END);
	IF chance < 0.25 THEN
		PERFORM narad.nack(m.receipt);
	ELSE
		PERFORM narad.ack(m.receipt);
	END IF;
	COMMIT;
END $$});

sub run_rounds
{
	my ($clients, $rounds) = @_;
	my $script = $node->basedir . '/round.sql';
	append_to_file($script, "CALL round();\n") unless -e $script;
	return $node->command_ok(
		[ 'pgbench', '-n', '-c', $clients, '-j', '2', '-t', $rounds, '-f', $script, $node->connstr('postgres') ],
		"$clients sessions, $rounds rounds");
}

# I2, for keys: what two sessions saw of one key does not overlap; each message
# was acked before any later one of its key was seen.
sub order_holds
{
	my ($what) = @_;
	is($s->value(q{SELECT count(*) FROM (SELECT got, max(gone) OVER (PARTITION BY partition, key ORDER BY got
		ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM audit) a WHERE got < before}),
		0, "$what: never two of a key in flight");
	is($s->value(q{SELECT count(*) FROM (SELECT msg_offset, max(msg_offset) OVER (PARTITION BY partition, key ORDER BY got
		ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM audit) a WHERE msg_offset < before}),
		0, "$what: in the order of offsets");
	is($s->value(q{SELECT count(*) FROM (SELECT FROM audit WHERE fate = 'ack' GROUP BY partition, msg_offset
		HAVING count(*) > 1) a}), 0, "$what: none settled twice");
	return;
}

# What is left is delivered, in order, and then nothing is.
sub drain
{
	my ($what) = @_;
	$s->rows(q{DO $$
	DECLARE
		m narad.message;
		n int;
	BEGIN
		LOOP
			n := 0;
			FOR m IN SELECT * FROM narad.consume('ordered', 100) LOOP
				INSERT INTO audit VALUES (nextval('clock'), nextval('clock'), m.partition, m.key, m.msg_offset, 'ack');
				PERFORM narad.ack(m.receipt);
				n := n + 1;
			END LOOP;
			EXIT WHEN n = 0;
			COMMIT;
		END LOOP;
	END $$});
	order_holds($what);
	is($s->value(q{SELECT count(*) FROM (SELECT partition, msg_offset FROM produced EXCEPT
		SELECT partition, msg_offset FROM audit WHERE fate = 'ack') p}), 0, "$what: every message was settled");
	is($s->value(q{SELECT count(*) FROM narad.groups WHERE topic = 'ordered'::regclass AND
		(in_flight > 0 OR frontier <> end_offset - 1)}), 0, "$what: and the frontier is at the end");
	is($s->value(q{SELECT count(*) FROM narad.verify('ordered')}), 0, "$what: nothing is wrong");
	return;
}

run_rounds(32, 1000);
order_holds('32 sessions');
cmp_ok($s->value(q{SELECT count(*) FROM audit}), '>', 10000, 'messages went through');
drain('32 sessions');

# A clean stop with messages leased, returned, backing off and waiting: in
# order afterwards.  What is leased comes again, from the first of its key.
sub leave_some
{
	$s->rows(q{TRUNCATE audit, produced});
	$s->rows(q{INSERT INTO produced SELECT p.* FROM generate_series(0, 499) i,
		narad.produce('ordered', to_jsonb(i), key => 'k' || i % 10) p});
	$s->rows(q{CREATE TABLE IF NOT EXISTS held (receipt text, partition int, msg_offset bigint)});
	$s->rows(q{TRUNCATE held});
	$s->rows(q{INSERT INTO held SELECT receipt, partition, msg_offset FROM narad.consume('ordered', 100)});
	$s->rows(q{SELECT narad.nack(receipt) FROM held WHERE msg_offset % 3 = 0});
	$s->rows(q{SELECT narad.nack(receipt, '1 hour') FROM held WHERE msg_offset % 3 = 1});
	return $s->value(q{SELECT count(*) FROM held});
}

foreach my $mode ('fast', 'immediate')
{
	my $held = leave_some();
	is($held, 10, "before the $mode stop: one of each key");
	$s->quit;
	$node->stop($mode);
	$node->start;
	$s = narad_session($node);
	is($s->value(q{SELECT count(*) FROM (SELECT partition, msg_offset FROM narad.consume('ordered', 100)
		EXCEPT SELECT partition, msg_offset FROM held) a}), 0, "after the $mode stop: the same first");
	$s->quit;
	$node->stop($mode);
	$node->start;
	$s = narad_session($node);
	drain("after the $mode stop");
}

# While one consumer has claimed messages whose keys it has not read, no other
# hands out a later one.
SKIP:
{
	skip 'this library has no stop points', 3 unless $ENV{NARAD_TESTING};
	my @sessions = map { narad_session($node) } 1 .. 2;
	$s->rows(q{SELECT narad.create_topic('raced', ordering => 'key')});
	$s->rows(q{SELECT narad.produce_batch('raced', ARRAY['0', '1', '2']::jsonb[], keys => '{a,a,b}')});
	$s->rows("CREATE FUNCTION stop_$_(text) RETURNS "
			. ($_ eq 'waiting' ? 'integer' : 'void')
			. " AS '\$libdir/narad', 'narad_stop_$_' LANGUAGE C STRICT") foreach qw(arm release waiting);
	$s->rows(q{SELECT stop_arm('consume-claimed')});
	$sessions[0]->send(q{SELECT msg_offset FROM narad.consume('raced')});
	ok(poll_until('one has claimed', sub { $s->value(q{SELECT stop_waiting('consume-claimed')}) == 1 }), 'one has claimed');
	$sessions[1]->send(q{SELECT msg_offset FROM narad.consume('raced', 10)});
	ok(poll_until('the other waits', sub {
		$s->value(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'NaradScan'}) == 1 }), 'the other waits');
	$s->rows(q{SELECT stop_release('consume-claimed')});
	$_->finish foreach @sessions;
	is(join(' ', map { $_->{rows}[0][0] } @sessions), '0 2', 'and gets what has another key');
	$_->quit foreach @sessions;
}

# The order changes, and who looks first takes one message and goes no farther: what
# lies beyond, met before and delayed, is told of all the same (I8).
{
	my @waiting = map { narad_session($node) } 1 .. 2;
	$s->rows(q{SELECT narad.create_topic('anew', visibility_timeout => '1 hour')});
	$s->rows(q{SELECT narad.produce('anew', '0'); SELECT narad.produce('anew', '1', deliver_after => '3 s')});
	my ($out) = $s->rows(q{SELECT receipt FROM narad.consume('anew', 2)});
	$s->rows(q{SELECT narad.alter_topic('anew', ordering => 'key')});
	foreach my $n (1 .. 2)
	{
		$waiting[ $n - 1 ]->send(q{CALL narad.wait('anew', '20 s')});
		poll_until("$n sleep", sub { $s->value('SELECT count(*) FROM narad.waiters') == $n });
	}
	$s->rows("SELECT narad.nack('$out->[0]')");
	$waiting[0]->finish;
	is($waiting[0]{rows}[0][0], 't', 'anew: one is told of what came back');
	is(join(' ', map { $_->[0] } $s->rows(q{SELECT msg_offset FROM narad.consume('anew')})), '0', 'anew: and it is taken');
	$waiting[1]->finish;
	is($waiting[1]{rows}[0][0], 't', 'anew: the other is told of the delayed one');
	$_->quit foreach @waiting;
}

# The head of a key is damaged: it is skipped, and its key goes on.
$s->rows(q{SELECT narad.create_topic('damaged', ordering => 'key')});
$s->rows(q{SELECT narad.produce_batch('damaged', ARRAY['"first"', '"second"', '"other"']::jsonb[], keys => '{a,a,b}')});
my $path = $node->data_dir . '/' . $s->value(q{SELECT pg_relation_filepath('damaged')});
$s->rows(q{SELECT msg_offset FROM narad.consume('damaged', visibility_timeout => '1 ms')});
$s->quit;
$node->stop;
log_is_clean($node, 'the server was well');
my $bytes = slurp_file($path);
my $at = index($bytes, 'first');
cmp_ok($at, '>', 0, 'the record is in the file');
open(my $fh, '+<:raw', $path) or die "could not open $path: $!";
seek($fh, $at, 0);
print $fh 'FIRST';
close($fh);
$node->append_conf('postgresql.conf', 'ignore_checksum_failure = on');
$node->start;
$s = narad_session($node);
is(join(' ', map { "$_->[0]$_->[1]" } $s->rows(q{SELECT msg_offset, key FROM narad.consume('damaged', 10)})), '1a 2b',
	'I11: a damaged head frees its key');
$s->quit;
$node->stop;
done_testing();
