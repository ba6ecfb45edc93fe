# Copyright (c) 2026, the Narad authors
#
# I1, I5: a dead letter is in one place, the topic it comes from or the one it
#     goes to, wherever in its move the server crashes, the worker ends, or a
#     standby takes over.
#
# A move that fails, or hangs, is tried again, harms no other message and no other
# topic.  What the functions that run in it may do is 142_dead_letter_code's.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

plan skip_all => 'the library has no stop points' unless $ENV{NARAD_TESTING};

my $node = narad_node('letters', streaming => 1, conf => [ 'autovacuum = off',
	"narad.frontier_write_interval = '20ms'", "narad.frontier_flush_interval = '20ms'",
	'max_prepared_transactions = 4' ]);
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
CREATE TABLE effect (what text);
});
$node->safe_psql('postgres', slurp_file("$FindBin::RealBin/../narad_test/narad_test.sql"));

# A topic with messages 0 .. $n - 1 and its dead-letter topic, which has a row
# trigger if asked for, so that the executor appends.
sub fresh_topic
{
	my ($t, $n, $limit, $by_executor) = @_;
	$node->safe_psql('postgres', "SELECT narad.create_topic('${t}_letters');"
		  . " SELECT narad.create_topic('$t', max_deliveries => $limit, dead_letter_topic => '${t}_letters',"
		  . " visibility_timeout => '10 min');"
		  . ($by_executor ? "ALTER TABLE ${t}_letters ADD CHECK (value <> '-1');" : '')
		  . " SELECT count(*) FROM narad.produce_batch('$t',"
		  . " ARRAY(SELECT to_jsonb(i) FROM generate_series(0, $n - 1) i))");
	return;
}

# Takes up to $n messages and gives them back; the offsets with their counts.
sub nack_some
{
	my ($t, $n) = @_;
	return one_value($node, "SELECT coalesce(string_agg(msg_offset || ':' || deliveries, ' ' ORDER BY msg_offset), '')"
		  . " FROM (SELECT *, narad.nack(receipt) FROM narad.consume('$t', $n)) m");
}

sub letters
{
	my ($t, $on) = @_;
	return one_value($on || $node, "SELECT coalesce(string_agg(value::text, ' ' ORDER BY value), '') FROM ${t}_letters");
}

sub given_up
{
	my ($t, $n, $on) = @_;
	return poll_until("$n messages of $t are given up", sub {
		one_value($on || $node, 'SELECT sum(dead_lettered) >= ' . $n
			  . " AND sum(dead_letters_waiting) = 0 FROM narad.groups WHERE topic = '$t'::regclass") eq 't' });
}

# Until what was given back so far would survive a crash.
sub wait_until_durable
{
	my ($t) = @_;
	poll_until("state of $t is written", sub {
		one_value($node, "SELECT sum(unpersisted_ranges) FROM narad.groups WHERE topic = '$t'::regclass") eq '0' });
	my $lsn = one_value($node, 'SELECT pg_current_wal_insert_lsn()');
	return poll_until('WAL is flushed', sub {
		one_value($node, "SELECT pg_current_wal_flush_lsn() >= '$lsn'") eq 't' });
}

sub arm { return $node->safe_psql('postgres', "SELECT narad_test.stop_arm_any('$_[0]')"); }
sub held { return $node->safe_psql('postgres', "SELECT narad_test.stop_wait('$_[0]')"); }
sub release { return $node->safe_psql('postgres', "SELECT narad_test.stop_release('$_[0]')"); }

# All that was done so far is on disk, and then the server crashes.
sub crash
{
	$node->safe_psql('postgres', "INSERT INTO effect VALUES ('flush'); CHECKPOINT");
	$node->stop('immediate');
	$node->start;
	return;
}

sub worker_pid
{
	return one_value($node, "SELECT pid FROM pg_stat_activity WHERE application_name = 'narad worker'");
}

# ---- a crash at each step of the move ------------------------------------

my $round = 0;
foreach my $by_executor (0, 1)
{
	foreach my $point ('move-claimed', 'move-appended', 'commit-journalled', 'commit-settle')
	{
		my $t = 'crash' . $round++;
		my $name = "crash at $point" . ($by_executor ? ', by the executor' : '');
		fresh_topic($t, 1, 2, $by_executor);
		is(nack_some($t, 10), '0:1', "$name: given back once");
		wait_until_durable($t);

		# The second nack has no journal, so only the worker comes to the point.
		my $s = narad_session($node);
		$s->rows("CREATE TEMP TABLE r AS SELECT receipt FROM narad.consume('$t')");
		$s->rows('BEGIN; SELECT narad.nack(receipt) FROM r');
		arm('move-claimed');
		$s->rows('COMMIT');
		held('move-claimed');
		if ($point ne 'move-claimed')
		{
			arm($point);
			release('move-claimed');
			held($point);
		}
		$s->quit;
		crash();

		if ($point eq 'commit-settle')
		{
			is(nack_some($t, 10), '', "$name: not delivered any more");
			is(letters($t), '0', "$name: it has been moved");
		}
		else
		{
			is(letters($t), '', "$name: it has not been moved");
			is(nack_some($t, 10), '0:2', "$name: its last delivery, as the worker wrote nothing");
			ok(given_up($t, 1), "$name: it is moved");
			is(letters($t), '0', "$name: once");
		}
		is(one_value($node, "SELECT frontier FROM narad.groups WHERE topic = '$t'::regclass"), '0',
			"$name: settled");
		is(one_value($node, "SELECT count(*) FROM narad.verify('$t')"), '0', "$name: nothing is wrong");
		wait_until_durable($t);
		crash();
		is(nack_some($t, 10), '', "$name: gone after another crash");
		is(letters($t), '0', "$name: and still there once");
	}
}

# ---- with ack_mode = deferred the move is journalled all the same ----------

fresh_topic('deferred', 1, 1);
$node->safe_psql('postgres', "ALTER DATABASE postgres SET narad.ack_mode = 'deferred'");
$node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . worker_pid() . ')');
arm('commit-settle');
{
	# Its own nack is held there, too, and let go.
	my $s = narad_session($node);
	$s->send("SELECT narad.nack(receipt) FROM narad.consume('deferred')");
	held('commit-settle');
	release('commit-settle');
	$s->finish;
	arm('commit-settle');
	held('commit-settle') if letters('deferred') eq '';
	$s->quit;
}
crash();
is(nack_some('deferred', 10) . '|' . letters('deferred'), '|0', 'deferred acks: the move is journalled');
$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET narad.ack_mode');

# ---- the defaults of sessions are not the worker's -------------------------

fresh_topic('defaults', 1, 1, 1);
$node->safe_psql('postgres', "ALTER DATABASE postgres SET default_transaction_read_only = on;"
	  . " ALTER DATABASE postgres SET default_transaction_isolation = 'serializable';");
my $pid = worker_pid();
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
poll_until('the worker has left', sub { worker_pid() ne $pid });
$node->safe_psql('postgres', "BEGIN READ WRITE; SELECT narad.nack(receipt) FROM narad.consume('defaults'); COMMIT");
ok(given_up('defaults', 1), 'a move is made where transactions are read-only by default');
is(letters('defaults'), '0', 'once');
$node->safe_psql('postgres', "BEGIN READ WRITE; ALTER DATABASE postgres RESET default_transaction_read_only;"
	  . " ALTER DATABASE postgres RESET default_transaction_isolation; COMMIT");

# ---- restarts --------------------------------------------------------------

fresh_topic('restart', 3, 3, 1);
$node->safe_psql('postgres', "ALTER TABLE restart_letters ADD CHECK (value <> '0')");
is(nack_some('restart', 3), '0:1 1:1 2:1', 'restart: given back once');
is(nack_some('restart', 2), '0:2 1:2', 'restart: two of them twice');
$node->restart;
is(nack_some('restart', 3), '0:3 1:3 2:2', 'restart: counts have survived a clean one');
ok(poll_until('the others are moved', sub { letters('restart') eq '1' }), 'restart: one is moved, one cannot be');
is(nack_some('restart', 3), '2:3', 'restart: the failing one is not delivered');
$node->restart;
is(one_value($node, "SELECT count(*) FROM narad.consume('restart', 10)"), '0', 'restart: nor after a restart');
$node->safe_psql('postgres', 'ALTER TABLE restart_letters DROP CONSTRAINT restart_letters_value_check1');
ok(given_up('restart', 3), 'restart: in the end all are moved');
is(letters('restart'), '0 1 2', 'restart: once each');

# ---- the worker ends -------------------------------------------------------

fresh_topic('worker', 2, 1);
arm('move-appended');
nack_some('worker', 1);
held('move-appended');
$pid = worker_pid();
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
release('move-appended');
poll_until('the worker has left', sub { worker_pid() ne $pid });
nack_some('worker', 1);
ok(given_up('worker', 2), 'a new worker goes on');
is(letters('worker'), '0 1', 'and each message is moved once');

# ---- moves that hang, and moves of others ---------------------------------------

my $offset = -s $node->logfile;
fresh_topic('hanging', 3, 1);
fresh_topic('passing', 3, 1);
$node->safe_psql('postgres', q{
CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3600); RETURN NEW; END $$;
CREATE TRIGGER hang BEFORE INSERT ON hanging_letters FOR EACH ROW EXECUTE FUNCTION hang()});
nack_some('hanging', 3);
poll_until('the worker hangs', sub {
	one_value($node, "SELECT wait_event FROM pg_stat_activity WHERE application_name = 'narad worker'") eq 'PgSleep' });
nack_some('passing', 3);
ok(given_up('passing', 3), 'a move that hangs is cancelled, and those of another topic are made');
is(letters('hanging'), '', 'the one that hung is not made');
is(one_value($node, "SELECT count(*) FROM narad.consume('hanging', 10)"), '0', 'nor its message delivered');
like(slurp_file($node->logfile, $offset),
	qr/canceling statement due to statement timeout\n.*moving offset \d of partition 0 of topic "hanging"/s,
	'the log says which');
$node->safe_psql('postgres', 'DROP TRIGGER hang ON hanging_letters');
ok(given_up('hanging', 3), 'it is made when it can be');
is(letters('hanging'), '0 1 2', 'once each');

# Locked, it is left alone; another topic's is made.
fresh_topic('locked', 1, 1);
fresh_topic('unlocked', 1, 1);
{
	my $s = narad_session($node);
	$s->rows('BEGIN; LOCK TABLE locked_letters IN ACCESS EXCLUSIVE MODE');
	nack_some('locked', 1);
	nack_some('unlocked', 1);
	ok(poll_until('the other is moved', sub { letters('unlocked') eq '0' }), 'a locked dead-letter topic holds up no other');
	$s->rows('ROLLBACK');
	$s->quit;
}
ok(given_up('locked', 1), 'and is moved to when it is free');
is(letters('locked'), '0', 'once');

# ---- what they leave ----------------------------------------------------------------

# Given up is settled: where all messages are, nothing of the topic is kept.
{
	$node->safe_psql('postgres', q{
SELECT narad.create_topic('spent_letters');
SELECT narad.create_topic('spent', max_deliveries => 1, dead_letter_topic => 'spent_letters',
	cleanup => 'settled', segment_size => '256kB', segment_age => '1 s');
INSERT INTO spent (value) SELECT to_jsonb(rpad(i || '.', 900, 'x')) FROM generate_series(1, 500) i;
});
	one_value($node, "SELECT count(narad.nack(receipt)) FROM narad.consume('spent', 1000)");
	ok(given_up('spent', 500), 'all messages of a topic are given up');
	ok(poll_until('they are gone', sub {
		one_value($node, q{SELECT messages FROM narad.topics WHERE topic = 'spent'::regclass}) eq '0' }),
		'and freed by the cleanup of what is settled');
	is(one_value($node, q{SELECT count(*) FROM spent_letters}), '500', 'they are among the dead letters');
	is(one_value($node, q{SELECT lost_to_retention FROM narad.groups WHERE topic = 'spent'::regclass}), '0', 'none is lost');
}

# ---- dump and restore -----------------------------------------------------------

{
	my $dump = $node->basedir . '/letters.sql';
	$node->command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', $dump ], 'a dump with dead-letter topics');
	$node->safe_psql('postgres', 'CREATE DATABASE restored TEMPLATE template0');
	$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $dump ],
		'is restored');
	my $query = "SELECT string_agg(topic || ' ' || max_deliveries || ' ' || dead_letter_topic, ','"
	  . " ORDER BY topic::text) FROM narad.topics WHERE dead_letter_topic IS NOT NULL";
	is(one_value($node, $query, 'restored'), one_value($node, $query), 'with the settings');
	one_value($node, "SELECT count(narad.nack(receipt)) FROM narad.consume('locked', 10)", 'restored');
	ok(poll_until('it is moved there', sub {
		one_value($node, "SELECT count(*) FROM locked_letters WHERE headers->>'narad-origin-topic' = 'public.locked'",
			'restored') eq '2' }), 'which work');
	$node->safe_psql('postgres', 'DROP DATABASE restored');
}

# ---- a standby takes over -----------------------------------------------------------

fresh_topic('standby', 4, 1, 1);
$node->safe_psql('postgres', "ALTER TABLE standby_letters ADD CHECK (value <> '3')");
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('letters_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
nack_some('standby', 4);
ok(poll_until('three are moved', sub { letters('standby') eq '0 1 2' }), 'three of four are moved');
wait_until_durable('standby');
$node->wait_for_catchup($standby);
is(letters('standby', $standby), '0 1 2', 'the standby has them');
is(one_value($standby, "SELECT dead_lettered FROM narad.groups WHERE topic = 'standby'::regclass"), '3',
	'and their number');
$node->stop('immediate');
$standby->promote;
is(one_value($standby, "SELECT count(*) FROM narad.consume('standby', 10)"), '0', 'none is delivered again');
$standby->safe_psql('postgres', 'ALTER TABLE standby_letters DROP CONSTRAINT standby_letters_value_check1');
ok(given_up('standby', 4, $standby), 'the fourth is moved by the new primary');
is(letters('standby', $standby), '0 1 2 3', 'each is there once');

logs_are_clean('dead letters', $node, $standby);
$standby->stop;
done_testing();
