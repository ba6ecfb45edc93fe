# Copyright (c) 2026, the Narad authors
#
# I1, I2, I5: a standby promoted while messages come and go forgets leases, and
#     nothing else: what was acked in a transaction that wrote is settled if and
#     only if its effect is there.
# I3, I7: a standby, cascading or delayed, reads what it has replayed, in order,
#     and nothing of an open transaction.
# I4: receipts of the old primary are worth nothing to the new one.
# I6: frontiers are never past what was acked.
# I10: replay of what retention, TRUNCATE and freezing do to files is in
#     nobody's way for longer than the server's settings say.
#
# Readers beside replay, promotion under load, a cascade, replay that lags.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $primary = narad_node('primary', streaming => 1, conf => [ 'autovacuum = off', 'wal_keep_size = 512MB',
	"narad.frontier_write_interval = '10ms'" ]);
$primary->start;
create_work($primary);
$primary->safe_psql('postgres', q{
SELECT narad.create_topic('emptied', segment_size => '256kB');
SELECT narad.create_topic('cut', segment_size => '256kB');
SELECT fill(t::regclass, 3000) FROM unnest(ARRAY['emptied', 'cut']) t;
});
$primary->backup('base');

sub make_standby
{
	my ($name, $from, @conf) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->enable_streaming($from) if $from != $primary;
	$standby->append_conf('postgresql.conf', join("\n", @conf));
	$standby->start;
	return $standby;
}

my $first = make_standby('first', $primary);
my $second = make_standby('second', $first, 'max_standby_streaming_delay = -1');
my $delayed = make_standby('delayed', $primary, "recovery_min_apply_delay = '1d'");

# All that was written on the primary is replayed by both of the cascade.
sub catch_up
{
	$primary->wait_for_catchup($first);
	$first->wait_for_catchup($second, 'replay', $primary->lsn('write'));
	return;
}

# ---- readers in the way of replay -------------------------------------------------

my %taking_away = (
	emptied => 'TRUNCATE emptied',
	cut => q{SELECT narad.alter_topic('cut', retention => '1 ms'); SELECT pg_sleep(0.01); SELECT narad.apply_retention('cut')});
catch_up();
foreach my $wait (-1, 0)
{
	$second->adjust_conf('postgresql.conf', 'max_standby_streaming_delay', $wait);
	$second->reload;
	$second->poll_query_until('postgres', "SELECT setting = '$wait' FROM pg_settings WHERE name = 'max_standby_streaming_delay'");
	foreach my $topic (sort keys %taking_away)
	{
		my $n = one_value($second, "SELECT count(*) FROM $topic");
		my $reader = narad_session($second);
		$reader->rows('BEGIN ISOLATION LEVEL REPEATABLE READ');
		$reader->rows("DECLARE c CURSOR FOR SELECT msg_offset, left(value #>> '{}', 10) FROM $topic");
		my @got = $reader->rows('FETCH 10 FROM c');
		$primary->safe_psql('postgres', $taking_away{$topic});
		if ($wait < 0)
		{
			ok($second->poll_query_until('postgres', q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE backend_type = 'startup'}),
				"$topic: replay waits for the reader");
			is($reader->try('FETCH ALL FROM c'), '00000', "$topic: who goes on") or diag($reader->{error});
			push(@got, @{ $reader->{rows} });
			is(scalar(grep { $_->[1] !~ /^$_->[0]\./ } @got), 0, "$topic: and sees no wrong record");
			is(scalar(@got), $n, "$topic: but all") if $topic eq 'emptied';
			$reader->rows('COMMIT');
			catch_up();
			is($reader->value("SELECT count(*) FROM $topic"), 0, "$topic: then they are gone");
		}
		else
		{
			catch_up();
			is($reader->try('FETCH ALL FROM c') // 'gone', 'gone', "$topic: the reader goes when replay may not wait");
			like($reader->{errors}, qr/terminating connection due to conflict with recovery/, "$topic: and is told why");
		}
		$reader->quit;
		$primary->safe_psql('postgres', "SELECT narad.alter_topic('$topic', retention => '7 days'); SELECT fill('$topic', 2000)");
		catch_up();
		is(one_value($second, "SELECT count(*) FROM narad.fetch('$topic', 0, (SELECT earliest FROM narad.offsets('$topic')), 10000, 100000000)"), 2000, "$topic: new ones come");
	}
}
# Retention may cut a file once a minute, so that is another.
$primary->safe_psql('postgres', q{SELECT narad.create_topic('gone'); SELECT narad.produce('gone', '1')});
catch_up();
my $reader = narad_session($second);
is($reader->value('SELECT count(*) FROM gone'), 1, 'a topic that goes while somebody knows it');
$primary->safe_psql('postgres', q{SELECT narad.drop_topic('gone')});
catch_up();
is($reader->try('SELECT count(*) FROM gone'), '42P01', 'is gone');
$reader->quit;

# ---- promoted under load ------------------------------------------------------

my @load = map { narad_session($primary) } (0 .. 3);
$load[$_]->send('CALL work(100000, 0.02)') foreach (0 .. 2);
$load[3]->send('CALL churn(100000, 0.1)');

# Readers beside all that see a state of its own each, in which nothing is missing
# or wrong.
my $seen = 0;
my $round = 0;
my $rs = narad_session($second);
ok(poll_until('readers have seen much', sub {
	my $topic = 'churn' . ($round++ % 8);
	if (!$rs || $rs->{dead})
	{
		$rs = narad_session($second);
	}
	$rs->try('BEGIN ISOLATION LEVEL REPEATABLE READ');
	my $state = $rs->try("SELECT fill_finding('$topic')");
	if (($state // '') eq '00000')
	{
		is($rs->{rows}[0][0], '', 'a reader finds something wrong'), return 1 if $rs->{rows}[0][0] ne '';
		$state = $rs->try(q{SELECT (SELECT count(*) FROM ((TABLE produced EXCEPT ALL SELECT partition, msg_offset FROM q)
UNION ALL (SELECT partition, msg_offset FROM q EXCEPT ALL TABLE produced)) d) || ' ' || (SELECT count(*) FROM narad.groups
	WHERE topic = 'q'::regclass AND frontier >= end_offset)});
		is($rs->{rows}[0][0], '0 0', 'a reader sees something wrong in q'), return 1
		  if ($state // '') eq '00000' && $rs->{rows}[0][0] ne '0 0';
		$seen++ if ($state // '') eq '00000';
	}
	$state //= 'gone';
	fail("a reader gets $state $rs->{error}"), return 1 unless $state =~ /^(00000|40001|gone)$/;
	$rs->try('ROLLBACK');
	return $seen >= 16;
}), 'readers of a cascading standby beside load and retention');
$rs->quit;

# What changes anything is refused, and leaves the session as it was.
my $refused = narad_session($second);
foreach my $call (q{SELECT * FROM narad.consume('q', wait => '10 s')}, q{CALL narad.wait('q', '10 s')}, q{SELECT narad.produce('q', '1')},
	q{CALL work(1)}, q{SELECT narad.apply_retention('q')}, q{SELECT narad.seek('q', 'default', 0, 0)}, q{VACUUM q}, q{TRUNCATE q})
{
	is($refused->try($call), '25006', "refused: $call") or diag($refused->{error});
}
is($refused->value("SELECT count(*) > 0 FROM narad.fetch('q', 0, 0)"), 't', 'and the session goes on');
$refused->quit;

# A lease that the primary gave, and an ack whose transaction is open.
my $open = narad_session($primary);
$primary->safe_psql('postgres', q{SELECT narad.create_topic('held', visibility_timeout => '1 hour');
SELECT count(*) FROM narad.produce_batch('held', ARRAY['1', '2', '3', '4']::jsonb[])});
my @receipts = map { $_->[0] } $open->rows(q{SELECT receipt FROM narad.consume('held', 3)});
$open->rows("BEGIN; INSERT INTO effect VALUES ('held', 0, 0, '1'); SELECT narad.ack('$receipts[0]'); COMMIT");
$open->rows("BEGIN; INSERT INTO effect VALUES ('held', 0, 1, '2'); SELECT narad.ack('$receipts[1]')");
$primary->wait_for_catchup($first);
is(one_value($first, 'SELECT count(*) FROM narad.leases'), 0, 'a standby knows no leases');
$first->promote;
$first->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
my $at = one_value($first, 'SELECT count(*) FROM effect');
ok(poll_until('the old primary went on', sub { one_value($primary, 'SELECT count(*) FROM effect') > $at }), 'the old primary goes on');
one_value($primary, 'SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE query ~ \'^CALL (work|churn)\'');
is($_->finish, '57014', 'the load ends when it is told to') or diag($_->{error}) foreach (@load);
is($open->try('COMMIT'), '00000', 'and a commit there comes too late');
is(one_value($first, q{SELECT string_agg(msg_offset || ' ' || deliveries, ', ' ORDER BY msg_offset) FROM narad.consume('held', 10)}),
	'1 1, 2 1, 3 1', 'promoted: what was leased, or acked in an open transaction, comes again');
foreach my $receipt (@receipts)
{
	my ($ret, undef, $error) = $first->psql('postgres', "SELECT narad.ack('$receipt')");
	like($error, qr/receipt is no longer valid/, 'a receipt of the old primary is worth nothing');
}
is(one_value($first, q{SELECT count(*) FROM effect WHERE consumer_group = 'held'}), 1, 'the effect of one is there');
$first->safe_psql('postgres', q{SELECT narad.drop_topic('held')});
work_is_exact($first, 'promoted');
is(one_value($first, q{SELECT epoch || ' ' || (narad.offset_for_epoch('q', 0, 1) < end_offset) || ' ' ||
	(narad.offset_for_epoch('q', 0, 1) > (SELECT max(msg_offset) FROM effect WHERE partition = 0 AND consumer_group <> 'held'))
FROM narad.offsets('q') WHERE partition = 0}), '2 true true', 'the epoch has risen, and tells what was there before');
$first->safe_psql('postgres', 'CALL work(50); CALL churn(16)');
is(one_value($first, 'SELECT count(*) - count(DISTINCT (partition, msg_offset)) FROM q'), 0, 'no offset is used again');

# ---- the cascade ------------------------------------------------------------------

$first->wait_for_catchup($second);
is(one_value($second, q{SELECT count(*) || ' ' || md5(string_agg(partition || ':' || msg_offset || ':' || value, '' ORDER BY partition, msg_offset)) FROM q}),
	one_value($first, q{SELECT count(*) || ' ' || md5(string_agg(partition || ':' || msg_offset || ':' || value, '' ORDER BY partition, msg_offset)) FROM q}),
	'the cascading standby followed the promotion');
is(all_findings($second), '', 'and verify finds nothing');
my $epoch = one_value($first, q{SELECT epoch FROM narad.offsets('q') WHERE partition = 1});
$first->stop;
$second->promote;
$second->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
work_is_exact($second, 'the next one promoted');
$second->safe_psql('postgres', q{SELECT narad.produce('q', '1', partition => 1)});
is(one_value($second, q{SELECT epoch FROM narad.offsets('q') WHERE partition = 1}), $epoch + 1, 'in an epoch of its own');
$second->stop;

# ---- replay that lags -----------------------------------------------------------------

$_->quit foreach (@load, $open);
$primary->wait_for_catchup($delayed, 'flush');
is(one_value($delayed, 'SELECT count(*) FROM effect'), 0, 'a delayed standby has replayed no commit');
is(one_value($delayed, q{SELECT count(*) FROM q}), 0, 'and shows no message');
is(one_value($delayed, q{SELECT count(*) FROM narad.offsets('q') o, narad.fetch('q', o.partition, 0) f}), 0, 'nor by fetch');
is(one_value($delayed, q{SELECT count(*) FROM emptied}), 3000, 'but what was there');
is(all_findings($delayed), '', 'verify finds nothing');
$delayed->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$delayed->promote;
$delayed->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
is(one_value($delayed, 'SELECT count(*) FROM effect'), one_value($primary, 'SELECT count(*) FROM effect'),
	'promoted it has all that it was sent');
is(one_value($delayed, q{SELECT string_agg(msg_offset::text, ' ' ORDER BY msg_offset) FROM narad.consume('held', 10)}), '2 3',
	'every ack, too');
$delayed->safe_psql('postgres', q{SELECT narad.drop_topic('held')});
work_is_exact($delayed, 'delayed, then promoted');
$delayed->stop;
$primary->stop;
logs_are_clean('standby', $primary, $first, $second, $delayed);
done_testing();
