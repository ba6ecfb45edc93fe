# Copyright (c) 2026, the Narad authors
#
# I5: an ack journalled before a seek is void after it, also after a crash, and
#     however many pages the journal has; one made after it counts.
# I6: a group moved back or forward is where it was moved, after a crash at any
#     step, a standby's promotion and an error in the middle.
# I1: between the two steps of a seek nothing is lost.
# An offset that was told is not given again after a crash.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

plan skip_all => 'needs stop points' unless $ENV{NARAD_TESTING};

my $node = narad_node('seek', conf => [ 'autovacuum = off', 'max_prepared_transactions = 4', 'restart_after_crash = on' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad; CREATE TABLE effect (off bigint);');
$node->safe_psql('postgres', slurp_file("$ENV{NARAD_INPUTS}/test/narad_test/narad_test.sql"));

# A topic with messages 0 .. $n - 1 in each partition.
sub fresh_topic
{
	my ($t, $n, $partitions) = @_;
	$partitions ||= 1;
	$node->safe_psql('postgres', "SELECT narad.create_topic('$t', $partitions, visibility_timeout => '10 min'"
		  . ", max_in_flight => 1000000, max_acked_ahead => 1000000);"
		  . " SELECT narad.produce_batch('$t', ARRAY(SELECT to_jsonb(i) FROM generate_series(0, $n - 1) i),"
		  . " partition => p) FROM generate_series(0, $partitions - 1) p");
	return;
}

# The first $n messages of all partitions together are settled, durably: an
# acknowledgement alone may be lost with the second before a crash.
sub settle_first
{
	my ($t, $n) = @_;
	$node->safe_psql('postgres', "BEGIN; INSERT INTO effect VALUES (-1);"
		  . " SELECT narad.ack(array_agg(receipt)) FROM narad.consume('$t', $n); COMMIT");
	return;
}

# The offsets that come from a partition, and how many.
sub comes
{
	my ($t, $partition) = @_;
	return one_value($node, "SELECT count(*) || ' from ' || coalesce(min(msg_offset), -1)"
		  . " FROM narad.consume('$t', 100000, partition => " . ($partition || 0) . ')');
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

# ---- moved, and crashed ---------------------------------------------------

fresh_topic('plain', 10);
$node->safe_psql('postgres', "SELECT narad.ack(array_agg(receipt)) FROM narad.consume('plain', 8)");
$node->safe_psql('postgres', "SELECT narad.seek('plain', 'default', 0, 3)");
crash();
is(comes('plain'), '7 from 3', 'moved back: stands after a crash');
$node->safe_psql('postgres', "SELECT narad.seek('plain', 'default', 0, 9)");
crash();
is(comes('plain'), '1 from 9', 'moved forward: stands after a crash');

# ---- acks of before -------------------------------------------------------

# Transactions that also write: each leaves journal entries of many ranges.
fresh_topic('journal', 20000);
{
	my $s = narad_session($node);
	$s->rows(q{CREATE TEMP TABLE r AS SELECT receipt, msg_offset FROM narad.consume('journal', 20000)});
	$s->rows(q{INSERT INTO r SELECT receipt, msg_offset FROM narad.consume('journal', 20000)}) foreach (1 .. 10);
	foreach my $k (0 .. 3)
	{
		$s->rows("BEGIN; INSERT INTO effect VALUES ($k); SELECT narad.ack(array_agg(receipt)) FROM r"
			  . " WHERE msg_offset % 8 = $k; COMMIT");
	}
	$s->rows("SELECT narad.seek('journal', 'default', 0, 1)");
	$s->quit;
}
crash();
is(comes('journal'), '19999 from 1', 'no journalled ack of before counts');
is(one_value($node, "SELECT count(*) FROM narad.verify('journal')"), 0, 'and all is well');

# Journalled, not yet committed: the seek comes between.
fresh_topic('between', 4);
{
	my $s = narad_session($node);
	my $other = narad_session($node);
	$s->rows(q{CREATE TEMP TABLE r AS SELECT receipt, msg_offset FROM narad.consume('between', 4)});
	$other->rows("SELECT narad_test.stop_arm('commit-journalled')");
	$s->send('BEGIN; INSERT INTO effect VALUES (1); SELECT narad.ack(array_agg(receipt)) FROM r; COMMIT');
	$other->rows("SELECT narad_test.stop_wait('commit-journalled')");
	$other->rows("SELECT narad.seek('between', 'default', 0, 1)");
	$other->rows("SELECT narad_test.stop_release('commit-journalled')");
	is($s->finish, '00000', 'the transaction commits');
	$_->quit foreach ($s, $other);
}
crash();
is(comes('between'), '3 from 1', 'and its acks are void');

# Acked before the seek, journalled after it.
fresh_topic('late', 4);
{
	my $s = narad_session($node);
	$s->rows(q{CREATE TEMP TABLE r AS SELECT receipt, msg_offset FROM narad.consume('late', 4)});
	$s->rows('BEGIN; INSERT INTO effect VALUES (2); SELECT narad.ack(array_agg(receipt)) FROM r');
	$node->safe_psql('postgres', "SELECT narad.seek('late', 'default', 0, 0)");
	$node->safe_psql('postgres', "BEGIN; INSERT INTO effect VALUES (3);"
		  . " SELECT narad.ack(receipt) FROM narad.consume('late', 1); COMMIT");
	$s->rows('COMMIT');
	$s->quit;
}
crash();
is(comes('late'), '3 from 1', 'acks of before the seek are void, that of after counts');

# ---- at each step ---------------------------------------------------------

# Raising the group's generation is first; an error then moves nothing.
fresh_topic('fails', 6);
settle_first('fails', 3);
{
	my $s = narad_session($node);
	$s->rows("SELECT narad_test.stop_arm('seek-raised')");
	is($s->try("SELECT narad.seek('fails', 'default', 0, 0)"), 'XX000', 'an error in the middle');
	$s->rows("SELECT narad_test.stop_release('seek-raised')");
	$s->quit;
}
crash();
is(comes('fails'), '3 from 3', 'moves nothing');
$node->safe_psql('postgres', "SELECT narad.seek('fails', 'default', 0, 1)");
is(comes('fails'), '5 from 1', 'and can be tried again');

# The server dies while a session is held at a point.
sub crash_at
{
	my ($point, $sql, $flush) = @_;
	my $s = narad_session($node);
	my $other = narad_session($node);
	$other->rows("SELECT narad_test.stop_arm('$point')");
	$s->send($sql);
	$other->rows("SELECT narad_test.stop_wait('$point')");
	$other->rows('INSERT INTO effect VALUES (5)') if $flush;
	crash();
	$_->{dead} = 1 foreach ($s, $other);
	$_->quit foreach ($s, $other);
	return;
}

fresh_topic('steps', 6);
settle_first('steps', 4);
crash_at('seek-begun', "SELECT narad.seek('steps', 'default', 0, 1)", 1);
is(comes('steps'), '2 from 4', 'a crash before anything was done');
crash_at('seek-done', "SELECT narad.seek('steps', 'default', 0, 1)", 1);
is(comes('steps'), '5 from 1', 'a crash after it was done, before the commit');

# What a session is answered while nothing flushes behind its back; then the process
# that would have dies, and all others with it.
sub die_unflushed
{
	my ($what, @sessions) = @_;
	my $s = $sessions[0];
	my $walwriter = $s->value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	kill('STOP', $walwriter);
	my $answer = $what->();
	kill('KILL', $walwriter);
	$s->try('SELECT pg_sleep(60)');
	$_->{dead} = 1 foreach (@sessions);
	$_->quit foreach (@sessions);
	ok($node->poll_query_until('postgres', 'SELECT true'), 'it starts again');
	return $answer;
}

# Nothing that flushes follows: the transaction is rolled back, and somebody has
# been given, and given back, what comes after the new place.
fresh_topic('undone', 6);
settle_first('undone', 4);
{
	my $s = narad_session($node);
	my $first = die_unflushed(sub {
		$s->rows("BEGIN; SELECT narad.seek('undone', 'default', 0, 1); ROLLBACK");
		return $s->value("SELECT min(msg_offset) FROM (SELECT msg_offset, narad.nack(receipt, '1 day')"
			  . " FROM narad.consume('undone', 2)) m") }, $s);
	is($first, 1, 'moved by a transaction that is rolled back');
}
is(comes('undone'), '5 from 1', 'the place stands');

# Who is told an offset may begin there later: it is not given again, though the
# message behind which it is, of a transaction still open, went with the crash.
my %told = (
	'narad.offsets' => "SELECT end_offset FROM narad.offsets('told')",
	'narad.partitions' => "SELECT end_offset FROM narad.partitions WHERE topic = 'told'::regclass",
	'narad.offset_for_time' => "SELECT narad.offset_for_time('told', 0, 'infinity')");
foreach my $name (sort keys %told)
{
	fresh_topic('told', 1);
	my $s = narad_session($node);
	my $open = narad_session($node);
	my $end = die_unflushed(sub {
		$open->rows("BEGIN; SELECT narad.produce('told', '1')");
		return $s->value($told{$name}) }, $s, $open);
	is(one_value($node, "SELECT msg_offset >= $end FROM narad.produce('told', '2')"), 't', "$name: what it told is not given again");
	$node->safe_psql('postgres', 'DROP TABLE told');
}

# Several partitions: each is in its old place or in the new one.
fresh_topic('time', 5, 3);
settle_first('time', 15);
crash_at('seek-done', "SELECT narad.seek_to_time('time', 'default', '-infinity')", 1);
is(comes('time', $_), $_ == 0 ? '5 from 0' : '0 from -1', "a crash after the first partition: partition $_")
  foreach (0 .. 2);
$node->safe_psql('postgres', "SELECT narad.seek_to_time('time', 'default', '-infinity')");
is(comes('time', $_), '5 from 0', "then in full: partition $_") foreach (0 .. 2);

# ---- two phases -----------------------------------------------------------

{
	my $s = narad_session($node);
	$s->rows("BEGIN; SELECT narad.seek('plain', 'default', 0, 0)");
	is($s->try("PREPARE TRANSACTION 'seek'"), '0A000', 'PREPARE after seek is refused');
	$s->rows("BEGIN; SAVEPOINT a; SELECT narad.seek('plain', 'default', 0, 0); ROLLBACK TO a");
	is($s->try("PREPARE TRANSACTION 'seek'"), '0A000', 'also when it was in a savepoint rolled back');
	$s->rows("BEGIN; INSERT INTO effect VALUES (7)");
	is($s->try("PREPARE TRANSACTION 'seek'"), '00000', 'and the next transaction can be prepared');
	$s->rows("ROLLBACK PREPARED 'seek'");
	$s->quit;
}
is(comes('plain'), '10 from 0', 'the seek itself stands');

# ---- under load -----------------------------------------------------------

# Consumers, a seeker and the worker at once: afterwards every message that
# lies at or above the last target comes, once.
fresh_topic('load', 3000);
{
	my @sessions = map { narad_session($node) } (1 .. 3);
	my $take = q{DO $$ BEGIN FOR i IN 1 .. 300 LOOP
	INSERT INTO effect SELECT msg_offset FROM narad.consume('load', 5) m, LATERAL narad.try_ack(ARRAY[m.receipt]);
	IF i % 3 = 0 THEN COMMIT; ELSIF i % 7 = 0 THEN ROLLBACK; END IF; END LOOP; END $$};
	$_->send($take) foreach (@sessions);
	my $seeker = narad_session($node);
	foreach my $i (1 .. 100)
	{
		$seeker->rows("SELECT narad.seek('load', 'default', 0, " . (($i * 37) % 500) . ')');
	}
	foreach my $s (@sessions)
	{
		is($s->finish, '00000', 'consuming under seeks') or diag($s->{error});
		$s->quit;
	}
	$seeker->rows("SELECT narad.seek('load', 'default', 0, 123)");
	$seeker->quit;
}
is(one_value($node, "SELECT count(*) FROM narad.verify('load')"), 0, 'nothing is wrong after it');
crash();
is(comes('load'), '2877 from 123', 'the last seek counts, whatever was acked before');

$node->stop;
log_is_clean($node, 'the log tells of no crash but ours', kills => 1);
done_testing();
