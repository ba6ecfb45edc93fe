# Copyright (c) 2026, the Narad authors
#
# I1: messages that crash the server whenever they are processed come to their
#     limit of deliveries, and those beside them are processed, once each.
# I5: what was acknowledged before such a crash stays so.
#
# After a crash whatever may have been out is handed out one at a time; nobody's
# count is raised but that of the one which was out when it happened again.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('poison', streaming => 1, conf => [ 'autovacuum = off', 'restart_after_crash = on', 'max_prepared_transactions = 4',
	"narad.frontier_write_interval = '20ms'", "narad.frontier_flush_interval = '20ms'" ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad; CREATE TABLE effect (t text, off bigint)');

sub fresh_topic
{
	my ($t, $n, $settings) = @_;
	$node->safe_psql('postgres', "SELECT narad.create_topic('${t}_letters');"
		  . " SELECT narad.create_topic('$t', visibility_timeout => '10 min', dead_letter_topic => '${t}_letters'$settings);"
		  . " SELECT count(*) FROM narad.produce_batch('$t',"
		  . " ARRAY(SELECT to_jsonb(i) FROM generate_series(0, $n - 1) i))");
	return;
}

# What one call gives: offset:deliveries.
sub batch
{
	my ($t, $n, $on) = @_;
	return one_value($on || $node, "SELECT coalesce(string_agg(msg_offset || ':' || deliveries, ' ' ORDER BY msg_offset), '')"
		  . " FROM narad.consume('$t', $n)");
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

# What is in memory has come to the state page, and to the disk.
sub until_flushed
{
	my ($t) = @_;
	poll_until('it is written', sub {
		one_value($node, "SELECT sum(unpersisted_ranges) FROM narad.groups WHERE topic = '$t'::regclass") eq '0' });
	my $lsn = one_value($node, 'SELECT pg_current_wal_insert_lsn()');
	return poll_until('WAL is flushed', sub { one_value($node, "SELECT pg_current_wal_flush_lsn() >= '$lsn'") eq 't' });
}

# A backend is killed, and with it the cluster, which starts anew by itself.
sub kill_backend
{
	my ($s) = @_;
	my $pid = $s->backend_pid;
	my $up = one_value($node, 'SELECT pg_postmaster_start_time()');
	kill('KILL', $pid);
	$s->try('SELECT 1');
	return poll_until('the server is up again', sub {
		my ($ret, $out) = $node->psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid");
		return $ret == 0 && $out eq '0';
	});
}

# One life of a consumer: takes batches, and processes their messages one by one
# in transactions with an effect.  At the poison everything goes down.  Returns
# true when it has found nothing more.
my @batches;
sub life
{
	my ($t, $size, $poison, $killer) = @_;
	my $s = narad_session($node);
	my $done = 0;
	$s->backend_pid;
	LIFE: while (!$done)
	{
		my @rows = $s->rows("SELECT receipt, msg_offset, deliveries FROM narad.consume('$t', $size)");
		push @batches, join(' ', sort { $a cmp $b } map { "$_->[1]:$_->[2]" } @rows);
		$done = !@rows;
		foreach my $row (@rows)
		{
			if ($row->[1] == $poison)
			{
				$killer->($s);
				last LIFE;
			}
			$s->rows("BEGIN; INSERT INTO effect VALUES ('$t', $row->[1]); SELECT narad.ack('$row->[0]'); COMMIT");
		}
	}
	$s->quit;
	return $done;
}

# ---- one that crashes the server each time --------------------------------

foreach my $how ('a crash of the server', 'the death of the backend')
{
	my $t = $how =~ /backend/ ? 'killed' : 'crashed';
	my $crashes = 0;
	fresh_topic($t, 20, ', max_deliveries => 3');
	@batches = ();
	while ($crashes < 10)
	{
		last if life($t, 10, 7, $t eq 'killed' ? \&kill_backend : sub { crash() });
		$crashes++;
	}
	is($crashes, 4, "$how: once as one of many, and three times alone");
	ok(poll_until('it is moved', sub { one_value($node, "SELECT count(*) FROM ${t}_letters") eq '1' }),
		"$how: then it is a dead letter");
	is(one_value($node, "SELECT concat_ws(' ', value, headers->>'narad-deliveries', headers->>'narad-ended') FROM ${t}_letters"),
		'7 3 server crashed', "$how: with three deliveries");
	is(one_value($node, "SELECT count(*) || ' ' || count(DISTINCT off) FROM effect WHERE t = '$t'"), '19 19',
		"$how: all others are processed, once each");
	is($batches[0], join(' ', sort map { "$_:1" } 0 .. 9), "$how: at first a batch of ten");
	is(join('|', @batches[ 1 .. 3 ]), '7:1|7:2|7:3', "$how: then the suspect alone, with a delivery more each time");
	is(scalar(grep { /:[23]/ && !/^7:/ } @batches), 0, "$how: nobody else's count was raised");
	is(one_value($node, "SELECT frontier || ' ' || dead_lettered FROM narad.groups WHERE topic = '$t'::regclass"), '19 1',
		"$how: all is settled");
}

# The same where messages are ordered by key.
{
	my $crashes = 0;
	$node->safe_psql('postgres', "SELECT narad.create_topic('keyed_letters');"
		  . " SELECT narad.create_topic('keyed', visibility_timeout => '10 min', dead_letter_topic => 'keyed_letters',"
		  . " ordering => 'key', max_deliveries => 2);"
		  . " SELECT count(*) FROM narad.produce_batch('keyed', ARRAY(SELECT to_jsonb(i) FROM generate_series(0, 11) i),"
		  . " keys => ARRAY(SELECT nullif(i % 3, 2)::text FROM generate_series(0, 11) i))");
	@batches = ();
	while ($crashes < 10)
	{
		last if life('keyed', 10, 3, sub { crash() });
		$crashes++;
	}
	is($crashes, 3, 'by key: once as one of many, and twice alone');
	ok(poll_until('it is moved', sub { one_value($node, 'SELECT count(*) FROM keyed_letters') eq '1' }),
		'by key: then it is a dead letter');
	# The rest of its key waits until it has been moved.
	life('keyed', 10, -1, sub { });
	is(one_value($node, "SELECT count(*) || ' ' || count(DISTINCT off) FROM effect WHERE t = 'keyed'"), '11 11',
		'by key: all others are processed, once each');
	is(one_value($node, "SELECT frontier || ' ' || dead_lettered FROM narad.groups WHERE topic = 'keyed'::regclass"), '11 1',
		'by key: all is settled');
	is(one_value($node, "SELECT coalesce(string_agg(off::text, ' ' ORDER BY ctid), '') FROM effect WHERE t = 'keyed' AND off % 3 = 0"),
		'0 6 9', 'by key: in the order of the key');
	is(one_value($node, "SELECT count(*) FROM narad.verify('keyed')"), '0', 'by key: nothing is wrong');
}

# ---- limit 1, and a batch in which all is lost but the culprit's first life ----

fresh_topic('once', 3, ', max_deliveries => 1');
is(batch('once', 3), '0:1 1:1 2:1', 'limit 1: a first delivery');
crash();
is(batch('once', 3), '0:1', 'limit 1: after a crash it is a first delivery still, alone');
crash();
is(batch('once', 3), '1:1', 'limit 1: the one that was out when it crashed again is not delivered any more');
ok(poll_until('it is moved', sub { one_value($node, 'SELECT value FROM once_letters') eq '0' }), 'limit 1: it is a dead letter');

# ---- one at a time -----------------------------------------------------------

fresh_topic('turns', 4, ', max_deliveries => 5');
is(batch('turns', 4), '0:1 1:1 2:1 3:1', 'turns: all are out');
crash();
{
	my $a = narad_session($node);
	my $b = narad_session($node);
	my ($r) = map { $_->[0] } $a->rows("SELECT receipt FROM narad.consume('turns', 4)");
	is(scalar($b->rows("SELECT * FROM narad.consume('turns', 4)")), 0, 'turns: the others wait while one is out');
	$node->safe_psql('postgres', "SELECT count(*) FROM narad.produce_array('turns', '[4, 5]')");
	my $got = join(' ', map { $_->[0] } $b->rows("SELECT msg_offset FROM narad.consume('turns', 1)"));
	is($got, '4', 'turns: fresh ones do not');
	$a->rows("SELECT narad.ack('$r')");
	my @rows = $b->rows("SELECT msg_offset, receipt FROM narad.consume('turns', 4)");
	is(join(' ', map { $_->[0] } @rows), '1', 'turns: the next one when it is settled');
	$b->rows("SELECT narad.nack('$rows[0][1]')");
	is(join(' ', map { $_->[0] } $a->rows("SELECT msg_offset FROM narad.consume('turns', 4)")), '2',
		'turns: or given back');
	$a->rows('BEGIN');
	is(scalar($a->rows("SELECT * FROM narad.consume('turns', 1)")), 1, 'turns: one that came back is like others');
	$a->rows('ROLLBACK');
	is($a->value("SELECT sum(in_flight) FROM narad.groups WHERE topic = 'turns'::regclass"), '2', 'turns: as counted');
	is($a->try("SELECT 1 / (deliveries - deliveries) FROM narad.consume('turns', 1)"), '22012',
		'turns: a call that fails');
	is($a->value("SELECT count(*) FROM narad.verify('turns')"), '0', 'turns: nothing is wrong');
	$_->quit foreach ($a, $b);
}

# Suspects stay such when messages are not ordered by key any more: those without
# an entry, and one that had come back before.
fresh_topic('unkeyed', 4, ", max_deliveries => 9, ordering => 'key'");
$node->safe_psql('postgres', "WITH four AS MATERIALIZED (SELECT * FROM narad.consume('unkeyed', 4))"
	  . ' SELECT narad.nack(receipt) FROM four WHERE msg_offset = 2');
is(batch('unkeyed', 4), '2:2', 'unkeyed: one of them for the second time');
until_flushed('unkeyed');
crash();
{
	my $s = narad_session($node);
	my ($out) = $s->rows("SELECT receipt, msg_offset FROM narad.consume('unkeyed', 4)");
	is($out->[1], '0', 'unkeyed: one is out, by key');
	$node->safe_psql('postgres', "SELECT narad.alter_topic('unkeyed', ordering => 'none')");
	is($s->value("CALL narad.wait('unkeyed', '1 ms')"), 't', 'unkeyed: who waits looks again, though one is out');
	is(batch('unkeyed', 4), '', 'unkeyed: the others wait for it without that, too');
	$node->safe_psql('postgres', "SELECT count(*) FROM narad.produce('unkeyed', '4')");
	is(batch('unkeyed', 4), '4:1', 'unkeyed: fresh ones do not');
	$s->rows("SELECT narad.ack('$out->[0]')");
	my @batches = map { join(' ', map { $_->[0] }
		$s->rows("SELECT msg_offset, narad.ack(receipt) FROM narad.consume('unkeyed', 4)")) } 1 .. 4;
	is(join('|', @batches), '1|2|3|', 'unkeyed: they come one at a time');
	is($s->value("SELECT count(*) FROM narad.verify('unkeyed')"), '0', 'unkeyed: nothing is wrong');
	$s->quit;
}

# One that is not due yet is put aside once: when the scan begins anew, it comes by
# what is claimed as a suspect before.
fresh_topic('put_off', 1, ", max_deliveries => 9, ordering => 'key'");
$node->safe_psql('postgres', "SELECT * FROM narad.produce('put_off', '1', deliver_after => '1 hour')");
is(batch('put_off', 2), '0:1', 'put off: the other one is out');
crash();
$node->safe_psql('postgres', "SELECT narad.ack(receipt) FROM narad.consume('put_off', 2)");
$node->safe_psql('postgres', "SELECT narad.alter_topic('put_off', ordering => 'none')");
is(batch('put_off', 2), '', 'put off: it is not due');
is(one_value($node, "SELECT scheduled FROM narad.groups WHERE topic = 'put_off'::regclass"), '1', 'put off: and waits once');

# Who has taken something else takes no suspect besides, and leaves it to others:
# they find it (I8), and a promise of it holds.
foreach my $order ('none', 'key')
{
	my $t = "beside_$order";
	my $batch = "SELECT coalesce(string_agg(partition || ':' || msg_offset, ' ' ORDER BY partition, msg_offset), 'none') FROM narad.consume('$t', 10)";
	my $s = narad_session($node);
	fresh_topic($t, 0, ", max_deliveries => 9, partitions => 2, ordering => '$order'");
	$s->rows("SELECT narad.produce('$t', '0', key => i::text, partition => p) FROM generate_series(1, 3) i, generate_series(0, 1) p");
	is($s->value("SELECT count(*) FROM narad.consume('$t', 3, partition => 1)"), '3', "beside, $order: three are out");
	crash();
	$s->quit;
	$s = narad_session($node);
	is($s->value($batch), '0:0 0:1 0:2', "beside, $order: the suspects of the other partition are not in this batch");
	is($s->value("CALL narad.wait('$t', '1 ms')"), 't', "beside, $order: but there for who waits");
	my ($out) = $s->rows("SELECT receipt, partition, msg_offset FROM narad.consume('$t', 10)");
	is("$out->[1]:$out->[2]", '1:0', "beside, $order: one is out");
	is($s->value($batch), 'none', "beside, $order: the next one is not to be had") foreach (1 .. 2);

	my @waiting = map { narad_session($node) } 1 .. 3;
	foreach my $n (1 .. 3)
	{
		$waiting[ $n - 1 ]->send("CALL narad.wait('$t', '20 s')");
		poll_until("$n sleep", sub { one_value($node, 'SELECT count(*) FROM narad.waiters') eq $n });
	}
	$s->rows("SELECT narad.ack('$out->[0]')");
	$waiting[0]->finish;
	is($waiting[0]{rows}[0][0], 't', "beside, $order: one is told of it");
	$s->rows("SELECT * FROM narad.produce('$t', '0', partition => 0)");
	$waiting[1]->finish;
	is($s->value($batch), '0:3', "beside, $order: another message is taken");
	$waiting[2]->finish;
	is($waiting[2]{rows}[0][0], 't', "beside, $order: nobody came for the suspect, so the next is told");
	is($s->value("SELECT count(*) FROM narad.verify('$t')"), '0', "beside, $order: nothing is wrong");
	$_->quit foreach ($s, @waiting);
}

# Nor does it forget who else was stopped there: by a message that was open when the
# server crashed, and is taken before the suspects, with which max_in_flight is used up.
{
	my $s = narad_session($node);
	fresh_topic('stopped', 0, ", max_deliveries => 9, partitions => 2, ordering => 'key'");
	$s->rows("BEGIN; SELECT narad.produce('stopped', '0', key => 'open', partition => 1); PREPARE TRANSACTION 'stopped'");
	$s->rows("SELECT narad.produce('stopped', '0', key => i::text, partition => 1) FROM generate_series(1, 3) i");
	is($s->value("SELECT count(*) FROM narad.consume('stopped', 3, partition => 1)"), '3', 'stopped: three are out');
	crash();
	$s->quit;
	$s = narad_session($node);
	my $take = 'SELECT receipt, partition, msg_offset FROM narad.consume';
	my ($out) = $s->rows("$take('stopped', 3, partition => 1)");
	is($out->[2], '1', 'stopped: a suspect is out');
	$s->rows("SELECT narad.ack('$out->[0]'); COMMIT PREPARED 'stopped'; SELECT narad.alter_topic('stopped', max_in_flight => 1)");
	($out) = $s->rows("$take('stopped', 3, partition => 1)");
	is($out->[2], '0', 'stopped: what was open is out');

	my $waiter = narad_session($node);
	$waiter->send("SELECT msg_offset FROM narad.consume('stopped', partition => 1, wait => '1 min')");
	poll_until('it sleeps', sub { one_value($node, "SELECT count(*) FROM narad.waiters JOIN pg_stat_activity USING (pid)"
		  . " WHERE wait_event_type = 'Extension'") eq '1' });
	# The first call that names no partition begins with this one.
	$s->rows("SELECT narad.produce('stopped', '0', partition => 0)");
	is($s->value("SELECT string_agg(partition || ':' || msg_offset, ' ') FROM narad.consume('stopped', 3)"), '0:0',
		'stopped: another looks, and has taken something else');
	$s->rows("SELECT narad.ack('$out->[0]')");
	$waiter->finish;
	is(($waiter->{rows}[0] // ['nothing'])->[0], '2', 'stopped: who waits has the next suspect when there is room');
	$_->quit foreach ($s, $waiter);
}

# A suspect beyond max_acked_ahead is there for who waits as soon as there is room,
# though who looked last would not have taken it.
{
	my $s = narad_session($node);
	fresh_topic('beyond', 0, ', max_deliveries => 9, partitions => 2');
	$s->rows("BEGIN; SELECT narad.produce('beyond', '0', partition => 1) FROM generate_series(0, 1); PREPARE TRANSACTION 'beyond'");
	$s->rows("SELECT narad.produce('beyond', '0', partition => 1) FROM generate_series(2, 3)");
	is($s->value("SELECT count(*) FROM narad.consume('beyond', 3, partition => 1)"), '2', 'beyond: two are out');
	crash();
	$s->quit;
	$s = narad_session($node);
	my ($suspect) = $s->rows("SELECT receipt, msg_offset FROM narad.consume('beyond', 3, partition => 1)");
	is($suspect->[1], '2', 'beyond: a suspect is out');
	$s->rows("COMMIT PREPARED 'beyond'; SELECT narad.alter_topic('beyond', max_acked_ahead => 2)");
	my @below = $s->rows("SELECT receipt, msg_offset FROM narad.consume('beyond', 3, partition => 1)");
	is(join(' ', map { $_->[1] } @below), '0 1', 'beyond: those below are out');
	$s->rows("SELECT narad.ack('$suspect->[0]')");

	$s->rows("SELECT narad.produce('beyond', '0', partition => 0)");
	is($s->value("SELECT string_agg(partition || ':' || msg_offset, ' ') FROM narad.consume('beyond', 3)"), '0:0',
		'beyond: the other suspect is not to be had yet');
	$s->rows("SELECT narad.ack('$below[0][0]')");
	is($s->value("CALL narad.wait('beyond', '1 ms')"), 't', 'beyond: it is there as soon as there is room');
	like(batch('beyond', 3), qr{^3:\d$}, 'beyond: and is had');
	$s->quit;
}

# Without a limit none has to wait for another: whoever waits is told, whatever was
# settled since the limit went.
{
	my $s = narad_session($node);
	fresh_topic('lifted', 3, ', max_deliveries => 9');
	is($s->value("SELECT count(*) FROM narad.consume('lifted', 3)"), '3', 'lifted: three are out');
	crash();
	$s->quit;
	$s = narad_session($node);
	is($s->value("SELECT msg_offset FROM narad.consume('lifted', 9)"), '0', 'lifted: a suspect is out');
	$s->rows("SELECT narad.produce('lifted', '3')");
	my ($fresh) = $s->rows("SELECT receipt, msg_offset FROM narad.consume('lifted', 9)");
	is($fresh->[1], '3', 'lifted: and a fresh one');
	is($s->value("SELECT count(*) FROM narad.consume('lifted', 9)"), '0', 'lifted: there is nothing else');
	$s->rows("SELECT narad.alter_topic('lifted', reset => '{max_deliveries}')");
	$s->rows("SELECT narad.ack('$fresh->[0]')");
	is($s->value("CALL narad.wait('lifted', '1 ms')"), 't', 'lifted: there is, without a limit');
	is(batch('lifted', 9), '1:1 2:1', 'lifted: and it is had');
	$s->quit;
}

# The count of the one that is out does not depend on what was written besides.
fresh_topic('counted', 1, ', max_deliveries => 4');
is(batch('counted', 1), '0:1', 'counted: first');
crash();
$node->safe_psql('postgres', "SELECT narad.nack(receipt) FROM narad.consume('counted')");
poll_until('it is written', sub {
	one_value($node, "SELECT unpersisted_ranges FROM narad.groups WHERE topic = 'counted'::regclass") eq '0' });
crash();
is(batch('counted', 1), '0:2', 'counted: the delivery that was given back counts once');
crash();
is(batch('counted', 1), '0:3', 'counted: and the one that was out');
SKIP:
{
	skip 'the library has no stop points', 1 unless $ENV{NARAD_TESTING};
	$node->safe_psql('postgres', slurp_file("$FindBin::RealBin/../narad_test/narad_test.sql"));
	crash();

	# A session that ends before it was given the message has not seen it.
	my $s = narad_session($node);
	my $pid = $s->backend_pid;
	$node->safe_psql('postgres', "SELECT narad_test.stop_arm('consume-read')");
	$s->send("SELECT msg_offset FROM narad.consume('counted')");
	$node->safe_psql('postgres', "SELECT narad_test.stop_wait('consume-read'); SELECT pg_terminate_backend($pid)");
	$node->safe_psql('postgres', "SELECT narad_test.stop_release('consume-read')");
	$s->finish;
	$s->quit;
	until_flushed('counted');
	crash();
	is(batch('counted', 1), '0:4', 'counted: nor one that nobody has seen');

	# Nor is such a one written, for others' sake, while it is under way.
	fresh_topic('unseen', 2, ', max_deliveries => 2');
	$s = narad_session($node);
	my ($first, $second) = map { $_->[0] } $s->rows("SELECT receipt FROM narad.consume('unseen', 2) ORDER BY msg_offset");
	$s->rows("SELECT narad.nack('$first')");
	$node->safe_psql('postgres', "SELECT narad_test.stop_arm('consume-read')");
	my $held = narad_session($node);
	$held->send("SELECT msg_offset FROM narad.consume('unseen')");
	$node->safe_psql('postgres', "SELECT narad_test.stop_wait('consume-read')");
	$s->rows("SELECT narad.nack('$second')");
	until_flushed('unseen');
	$node->stop('immediate');
	$_->quit foreach ($s, $held);
	$node->start;
	is(batch('unseen', 2), '0:2', 'unseen: a delivery that was under way is none yet');
}

# ---- a seek starts over: what was handed out before it does not count ----------

fresh_topic('sought', 3000, ', max_deliveries => 3, max_in_flight => 10000, max_acked_ahead => 10000');
$node->safe_psql('postgres', "BEGIN; INSERT INTO effect VALUES ('sought', -1);"
	  . " SELECT narad.ack(array_agg(receipt)) FROM narad.consume('sought', 2000); COMMIT;"
	  . " SELECT narad.seek('sought', 'default', 0, 0)");
crash();
is(batch('sought', 4), '0:1 1:1 2:1 3:1', 'sought: moved back and crashed, all come in one batch');
crash();
is(batch('sought', 4), '0:1', 'sought: but not what was handed out since');

# ---- a clean restart makes no suspects --------------------------------------

fresh_topic('clean', 6, ', max_deliveries => 2');
is(batch('clean', 3), '0:1 1:1 2:1', 'clean: three are out');
$node->restart;
is(batch('clean', 6), '0:1 1:1 2:1 3:1 4:1 5:1', 'clean: all come in one batch, as before');
crash();
is(batch('clean', 6), '0:1', 'clean: but not after a crash that follows');
$node->restart;
is(batch('clean', 6), '0:1 1:1 2:1 3:1 4:1 5:1', 'clean: nor does it stay so for ever');

# ---- without a limit there are no marks ---------------------------------------

fresh_topic('free', 6, '');
is(batch('free', 3), '0:1 1:1 2:1', 'no limit: three are out');
crash();
is(batch('free', 6), '0:1 1:1 2:1 3:1 4:1 5:1', 'no limit: all come in one batch');
$node->safe_psql('postgres', "SELECT narad.alter_topic('free', max_deliveries => 9)");
crash();
is(batch('free', 6), '0:1 1:1 2:1 3:1 4:1 5:1', 'a limit since then: there was no mark');
crash();
is(batch('free', 6), '0:1', 'a limit since then: now there is');
$node->safe_psql('postgres', "SELECT narad.alter_topic('free', reset => '{max_deliveries}')");
is(batch('free', 6), '1:1 2:1 3:1 4:1 5:1', 'a limit that goes while one is out: the others come');
$node->safe_psql('postgres', "SELECT narad.alter_topic('free', max_deliveries => 9)");
crash();
is(batch('free', 6), '0:2', 'and back again: one at a time');
{
	# Its transaction ends with the server.
	my $s = narad_session($node);
	fresh_topic('ahead', 0, ', max_deliveries => 9, max_acked_ahead => 1');
	$s->rows("BEGIN; SELECT * FROM narad.produce('ahead', '0')");
	$node->safe_psql('postgres', "SELECT * FROM narad.produce_array('ahead', '[1, 2]')");
	$node->safe_psql('postgres', "BEGIN; INSERT INTO effect VALUES ('ahead', 1);"
		  . " SELECT narad.ack(receipt) FROM narad.consume('ahead', 2) WHERE msg_offset = 1; COMMIT");
	crash();
	$s->quit;
}
$node->safe_psql('postgres', "SELECT narad.alter_topic(t, reset => '{max_deliveries}') FROM unnest('{free,ahead}'::regclass[]) t");
is(batch('free', 6), '0:3 1:1 2:1 3:1 4:1 5:1', 'no limit any more: all come in one batch');
is(batch('ahead', 6), '2:1', 'no limit any more: what is dead takes no place under max_acked_ahead');

# ---- many, over several marks, with rolled back ones among them -----------------

fresh_topic('many', 1300, ', max_deliveries => 3, max_in_flight => 10000, max_acked_ahead => 10000');
{
	my $s = narad_session($node);
	$s->rows("BEGIN; SELECT count(*) FROM narad.produce_batch('many', ARRAY(SELECT to_jsonb(i) FROM generate_series(0, 99) i)); ROLLBACK");
	$s->rows("SELECT count(*) FROM narad.produce('many', '1400')");
	is($s->value("SELECT count(*) FROM narad.consume('many', 1290)"), '1290', 'many: 1290 are out');
	$s->quit;
	crash();
	$s = narad_session($node);
	my %seen;
	foreach my $i (1 .. 2000)
	{
		my @rows = $s->rows("SELECT msg_offset, deliveries, narad.ack(receipt) FROM narad.consume('many', 50)");
		last unless @rows;
		$seen{ $_->[0] }++ foreach @rows;
		$seen{several}++ if @rows > 1;
		$seen{again}++ if grep { $_->[1] > 1 } @rows;
	}
	is(scalar(grep { /^\d+$/ } keys %seen), 1301, 'many: all come');
	is(scalar(grep { /^\d+$/ && $seen{$_} > 1 } keys %seen), 0, 'many: once each');
	ok(!$seen{again}, 'many: as first deliveries');
	is($s->value("SELECT frontier FROM narad.groups WHERE topic = 'many'::regclass"), '1400', 'many: and all is settled');
	is($s->value("SELECT count(*) FROM narad.verify('many')"), '0', 'many: nothing is wrong');
	$s->quit;
}

# ---- a standby does not know how its primary ended ------------------------------

fresh_topic('standby', 4, ', max_deliveries => 2');
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('poison_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
is(batch('standby', 2), '0:1 1:1', 'standby: two are out');
$node->wait_for_catchup($standby);
$node->stop('immediate');
$standby->promote;
is(batch('standby', 4, $standby), '0:1', 'standby: after the promotion one at a time');

log_is_clean($node, 'log of the primary', kills => 1);
log_is_clean($standby, 'log of the standby');
$standby->stop;

# ---- a page of suspects is damaged ------------------------------------------------

# The scan has not come by yet: what had been delivered goes with the others.
$node->start;
$node->safe_psql('postgres', "SELECT narad.create_topic('rotten', ordering => 'key', max_deliveries => 9, visibility_timeout => '1 hour');"
	  . " INSERT INTO rotten (value) SELECT to_jsonb(rpad(i::text, 950, 'x')) FROM generate_series(0, 30) i");
my ($rotten) = one_value($node, 'SELECT (ctid::text::point)[0]::int FROM rotten WHERE msg_offset = 12');
my ($first, $end) = split(/\|/, one_value($node, "SELECT min(msg_offset), max(msg_offset) + 1 FROM rotten WHERE (ctid::text::point)[0] = $rotten"));
$node->safe_psql('postgres', "WITH m AS MATERIALIZED (SELECT receipt, msg_offset FROM narad.consume('rotten', 20))"
	  . " SELECT CASE WHEN msg_offset < $first - 1 THEN narad.ack(receipt) WHEN msg_offset = $first + 1 THEN narad.nack(receipt) END FROM m");
until_flushed('rotten');
$node->safe_psql('postgres', 'CHECKPOINT');
my $file = $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('rotten')");
$node->stop('immediate');
open(my $fh, '+<:raw', $file) or die "$file: $!";
sysseek($fh, $rotten * 8192 + 4000, 0);
syswrite($fh, "\xff" x 8);
close($fh);
$node->start;
is(one_value($node, "SELECT msg_offset || ' ' || coalesce(narad.ack(receipt)::text, '') FROM narad.consume('rotten', 2)"), ($first - 1) . ' ',
	'rotten: the last before the page is out by key');
$node->safe_psql('postgres', "SELECT narad.alter_topic('rotten', ordering => 'none')");
is(batch('rotten', 2), "$end:1", 'rotten: then the first behind it');
is(one_value($node, "SELECT frontier - $end || ' ' || returned || ' ' || in_flight FROM narad.groups WHERE topic = 'rotten'::regclass"), '-1 0 1',
	'rotten: nothing is left of the page');
$node->stop;
done_testing();
