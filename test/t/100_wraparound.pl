# Copyright (c) 2026, the Narad authors
#
# I3: a record of an aborted transaction stays invisible, and a committed one
#     visible, when the server has long forgotten both transactions, and
#     their ids have come round; whatever a reader knew before; after a crash
#     at any moment of freezing; on a standby.
# I5: so do acks, of which nobody but the journal knows.
# I11: a damaged page holds back its segment, and no other.
#
# And relfrozenxid moves: VACUUM gets by with the directory where all is
# frozen, and autovacuum comes by itself before it is too late.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

plan skip_all => 'needs a library with stop points' unless $ENV{NARAD_TESTING};

my $inputs = $ENV{NARAD_INPUTS} || "$FindBin::RealBin/../..";
my $node = narad_node('wrap', streaming => 1, conf => [
	'autovacuum = off', 'autovacuum_freeze_max_age = 2000000000',
	"wal_consistency_checking = 'all, narad'", 'max_prepared_transactions = 5',
	"narad.frontier_write_interval = '1h'", "narad.frontier_flush_interval = '1h'",
	'wal_keep_size = 512MB', 'max_wal_size = 1GB']);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad; CREATE TABLE effect (n int);');
$node->safe_psql('postgres', slurp_file("$inputs/test/narad_test/narad_test.sql"));
create_helpers($node);

# Uses up about so many ids, the last of them by a transaction that commits.
sub burn
{
	my ($n) = @_;
	$node->safe_psql('postgres', "SELECT narad_test.burn_xids($n)");
	$node->safe_psql('postgres', 'CREATE TABLE t_burn (); DROP TABLE t_burn');
	return;
}

# All databases, template0 included: the commit log is cut off at the oldest.
sub freeze_all
{
	$node->safe_psql('postgres',
		q{UPDATE pg_database SET datallowconn = true WHERE datname = 'template0'});
	$node->safe_psql($_, 'VACUUM FREEZE') foreach qw(postgres template1 template0);
	$node->safe_psql('postgres',
		q{UPDATE pg_database SET datallowconn = false WHERE datname = 'template0'});
	return;
}

# The status of an id: "committed", "aborted", or "" when it is forgotten.
sub status_of
{
	my ($xid) = @_;
	return one_value($node, "SELECT pg_xact_status('$xid'::xid8)");
}

# Committed and aborted records, in full segments and in the open one.
my $nrounds = 0;
my $ngood = 0;

sub add_records
{
	my ($t, $n) = @_;
	$nrounds++;
	$ngood += $n + 2;
	$node->safe_psql('postgres', qq{
INSERT INTO $t (partition, value) SELECT i % 2, nt.msg('good.$nrounds.' || i, $nrounds, 700) FROM generate_series(1, $n) i;
BEGIN;
INSERT INTO $t (partition, value) SELECT 1, nt.msg('bad', 1, 100) FROM generate_series(1, 20) i;
ROLLBACK;
BEGIN;
INSERT INTO $t (partition, value) VALUES (0, nt.msg('good.s.$nrounds', 1, 20));
SAVEPOINT s;
INSERT INTO $t (partition, value) SELECT i % 2, nt.msg('bad', 1, 300) FROM generate_series(1, 20) i;
ROLLBACK TO s;
INSERT INTO $t (partition, value) VALUES (1, nt.msg('good.l.$nrounds', 1, 30000));
COMMIT;
});
	return;
}

sub content_is_right
{
	my ($name, $server) = @_;
	$server ||= $node;
	is($server->safe_psql('postgres', q{SELECT count(*), count(*) FILTER (WHERE NOT nt.msg_ok(value)),
	count(*) FILTER (WHERE value->>'id' LIKE 'bad%') FROM t}), "$ngood|0|0", "$name: a scan");
	is($server->safe_psql('postgres', q{SELECT count(*), count(*) FILTER (WHERE value->>'id' LIKE 'bad%')
	FROM generate_series(0, 1) p, nt.fetch_all('t', p)}), "$ngood|0", "$name: fetch");
	is($server->safe_psql('postgres', q{SELECT count(*) FROM narad.verify('t')}), 0, "$name: verify finds nothing");
	return;
}

# ------------------------------------------- records and acks, long forgotten

$node->safe_psql('postgres', q{
SELECT narad.create_topic('t', partitions => 2, segment_size => '256kB', max_in_flight => 100000, max_acked_ahead => 100000);
SELECT narad.create_group('t', 'idle');
SELECT narad.create_topic('resting', segment_size => '256kB');
INSERT INTO resting (value) VALUES ('"only one"');
});
add_records('t', 600);
my $acked_xid = one_value($node, q{
BEGIN;
INSERT INTO effect VALUES (1);
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('t', 10, consumer_group => 'idle', partition => 0);
SELECT pg_current_xact_id();
COMMIT;
});
$acked_xid =~ s/^\s+//;
like($acked_xid, qr/^\d+$/, 'an ack has an id');

# One that reaches the journal, but not its commit.
my $lost = narad_session($node);
$node->safe_psql('postgres', q{SELECT narad_test.stop_arm('commit-journalled')});
$lost->rows('BEGIN');
$lost->rows('INSERT INTO effect VALUES (2)');
$lost->rows(q{SELECT narad.ack(array_agg(receipt)) FROM narad.consume('t', 7, consumer_group => 'idle', partition => 1)});
$lost->send('COMMIT');
$node->safe_psql('postgres', q{SELECT narad_test.stop_wait('commit-journalled')});
$node->stop('immediate');
$lost->quit;
$node->start;
is(one_value($node, 'SELECT count(*) FROM effect'), 1, 'one ack was committed, the other was not');
content_is_right('young');

burn(3_000_000);
is(status_of($acked_xid), 'committed', 'the server knows the transactions');

# Readers from before: a cursor that has read the first rows, a snapshot.
my $cursor = narad_session($node);
$cursor->rows('BEGIN');
$cursor->rows(q{DECLARE c CURSOR FOR SELECT value->>'id', nt.msg_ok(value) FROM t});
is(scalar($cursor->rows('FETCH 5 FROM c')), 5, 'a cursor is open');
my $snapshot = narad_session($node);
$snapshot->rows('BEGIN ISOLATION LEVEL REPEATABLE READ');
$snapshot->rows('SELECT 1');

freeze_all();
is(status_of($acked_xid), '', 'the server has forgotten the transactions');
my @left = $cursor->rows('FETCH ALL FROM c');
is(scalar(@left), $ngood - 5, 'the cursor gets the others');
is(scalar(grep { $_->[0] =~ /^bad/ || $_->[1] ne 't' } @left), 0, 'and the right ones');
is($snapshot->value('SELECT count(*) FROM t'), $ngood, 'so does the snapshot');
is($snapshot->value(q{SELECT count(*) FROM generate_series(0, 1) p, nt.fetch_all('t', p)}), $ngood, 'by fetch, too');
$cursor->rows('COMMIT');
$snapshot->rows('COMMIT');
content_is_right('forgotten');
is(one_value($node, q{SELECT age(relfrozenxid) < 1000 FROM pg_class WHERE oid = 't'::regclass}), 't', 'relfrozenxid has moved');

# ---------------------------------------------------- the acks of that time

is(one_value($node, q{SELECT min(msg_offset) || ' ' || count(*) FROM narad.consume('t', 5, consumer_group => 'idle', partition => 0)}),
	'10 5', 'I5: what a committed transaction acked stays settled');
is(one_value($node, q{SELECT min(msg_offset) FROM narad.consume('t', 5, consumer_group => 'idle', partition => 1)}),
	0, 'I5: what one acked that never committed is delivered');

# ------------------------------------------------ ids come round: 2^31, 2^32

# From the first of a page of the commit log on, which is made by its first id.
my $xact_step = 1907 * 1048576;
my $next = 0;

foreach my $round (1 .. 3)
{
	$next += $xact_step;
	$node->stop;
	command_ok([ 'pg_resetwal', '-D', $node->data_dir, '-x', $next % 2**32, '-e', int($next / 2**32) ],
		"round $round: pg_resetwal");
	$node->start;
	my $xid = one_value($node, 'SELECT pg_current_xact_id()');
	cmp_ok($xid, '>=', $next, "round $round: ids go on from $next");
	content_is_right("round $round");
	add_records('t', 100);
	content_is_right("round $round, more records");
	is(one_value($node, q{SELECT age(relfrozenxid) > 1000000000 FROM pg_class WHERE oid = 'resting'::regclass}), 't',
		"round $round: it is high time");
	freeze_all();
	is(one_value($node, q{SELECT max(age(datfrozenxid)) < 100000 FROM pg_database}), 't', "round $round: all are young");
	content_is_right("round $round, frozen");
	is(one_value($node, q{SELECT value FROM resting}), '"only one"', "round $round: the open segment of a topic at rest");
	is(one_value($node, q{SELECT count(*) FROM narad.fetch('resting', 0, 0)}), 1, "round $round: ... by fetch");
}
is(one_value($node, q{SELECT count(*) || ' ' || count(*) FILTER (WHERE value->>'id' LIKE 'bad%')
FROM narad.consume('t', 100000)}), "$ngood 0", 'consume gives every record, and none of the aborted ones');
is(one_value($node, q{SELECT min(msg_offset) FROM narad.consume('t', 5, consumer_group => 'idle', partition => 0)}),
	10, 'I5: the old ack holds');

# ------------------------------------------------------ crash while freezing

$node->safe_psql('postgres', q{SELECT narad.create_topic('c', partitions => 2, segment_size => '256kB')});
foreach my $point (qw(freeze-page freeze-segment freeze-relfrozenxid))
{
	my $n = $ngood;
	add_records('c', 400);
	my $before = topic_hash($node);
	$ngood = $n;
	$node->safe_psql('postgres', "SELECT narad_test.stop_arm('$point')");
	my $vacuum = narad_session($node);
	$vacuum->send('VACUUM FREEZE c');
	$node->safe_psql('postgres', "SELECT narad_test.stop_wait('$point')");
	$node->safe_psql('postgres', 'CHECKPOINT') if $point eq 'freeze-segment';
	$node->stop('immediate');
	$vacuum->quit;
	$node->start;
	is(topic_hash($node), $before, "crash at $point: nothing has changed");
	is(one_value($node, q{SELECT count(*) FROM narad.verify('c')}), 0, "crash at $point: verify");
	$node->safe_psql('postgres', 'VACUUM FREEZE c');
	is(topic_hash($node), $before, "crash at $point: frozen again");
	is(one_value($node, q{SELECT age(relfrozenxid) < 100 FROM pg_class WHERE oid = 'c'::regclass}), 't',
		"crash at $point: relfrozenxid has moved");
}

# --------------------------------------- what is open holds back what it must

my $before = topic_hash($node);
$node->safe_psql('postgres', q{
BEGIN;
INSERT INTO c (partition, value) SELECT i % 2, nt.msg('prepared.' || i, 1, 700) FROM generate_series(1, 300) i;
PREPARE TRANSACTION 'p';
BEGIN;
INSERT INTO c (partition, value) SELECT i % 2, nt.msg('bad', 1, 700) FROM generate_series(1, 300) i;
ROLLBACK;
});
my $prepared = one_value($node, q{SELECT transaction FROM pg_prepared_xacts});
$node->safe_psql('postgres', 'VACUUM FREEZE c');
is(one_value($node, q{SELECT relfrozenxid FROM pg_class WHERE oid = 'c'::regclass}), $prepared,
	'a prepared transaction holds back relfrozenxid');
is(topic_hash($node), $before, 'its records stay invisible');
$node->restart;
is(topic_hash($node), $before, 'after a restart, too');
$node->safe_psql('postgres', 'VACUUM FREEZE c');
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
is(one_value($node, q{SELECT count(*) FROM c WHERE value->>'id' LIKE 'prepared%'}), 300, 'until it commits');
$node->safe_psql('postgres', 'VACUUM FREEZE c');
is(one_value($node, q{SELECT count(*) || ' ' || count(*) FILTER (WHERE value->>'id' LIKE 'bad%') FROM c WHERE value->>'id' ~ 'prepared|bad'}),
	'300 0', 'and when it is frozen');
is(one_value($node, q{SELECT count(*) FROM narad.verify('c')}), 0, 'verify finds nothing');

# ---------------------------------------------------------- a standby

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "max_standby_streaming_delay = -1\nhot_standby_feedback = off");
$standby->start;
$node->wait_for_catchup($standby);
content_is_right('standby', $standby);

my $old = narad_session($standby);
$old->rows('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($old->value('SELECT count(*) FROM t'), $ngood, 'a snapshot on the standby');
my $old_count = $ngood;
add_records('t', 300);
$node->safe_psql('postgres', 'VACUUM FREEZE t');
ok($standby->poll_query_until('postgres',
	q{SELECT wait_event = 'RecoveryConflictSnapshot' FROM pg_stat_activity WHERE backend_type = 'startup'}),
	'replay waits for it');
is($old->value('SELECT count(*) FROM t'), $old_count, 'it sees what it saw');
is($old->value(q{SELECT count(*) FROM narad.fetch('t', 0, 0, 100000) WHERE value->>'id' LIKE 'bad%'}), 0,
	'and no aborted record');
$old->rows('COMMIT');
$node->wait_for_catchup($standby);
content_is_right('standby, frozen', $standby);

$standby->append_conf('postgresql.conf', 'max_standby_streaming_delay = 0');
$standby->reload;
$old->rows('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($old->value('SELECT count(*) FROM t'), $ngood, 'another snapshot');
add_records('t', 300);
$node->safe_psql('postgres', 'VACUUM FREEZE t');
$node->wait_for_catchup($standby);
is($old->try('SELECT count(*) FROM t') // 'gone', 'gone', 'its session ends when replay may not wait');
like($old->{errors}, qr/terminating connection due to conflict with recovery/, 'for that');
$old->quit;
$standby->stop;

# One that misses nothing of what is frozen stays: the primary knows of it, and
# removes nothing else that it needs.  The standby is a new one: ids that were
# stepped over are too many for one that has followed.
add_records('t', 300);
burn(3_000_000);
$node->backup('later');
my $later = PostgreSQL::Test::Cluster->new('later');
$later->init_from_backup($node, 'later', has_streaming => 1);
$later->append_conf('postgresql.conf', "hot_standby_feedback = on\nwal_receiver_status_interval = 1");
$later->start;
$node->wait_for_catchup($later);
$old = narad_session($later);
$old->rows('BEGIN ISOLATION LEVEL REPEATABLE READ');
$old->rows(q{DECLARE c CURSOR FOR SELECT value->>'id' FROM t});
$old->rows('FETCH 5 FROM c');
ok($node->poll_query_until('postgres', 'SELECT backend_xmin IS NOT NULL FROM pg_stat_replication'),
	'the primary is told of a third snapshot');
freeze_all();
$node->wait_for_catchup($later);
@left = $old->rows('FETCH ALL FROM c');
is(scalar(@left), $ngood - 5, 'it lives on, though the status of all is forgotten');
is(scalar(grep { $_->[0] =~ /^bad/ } @left), 0, 'and sees what it should');
is($old->value('SELECT count(*) FROM t'), $ngood, 'once more');
$old->rows('COMMIT');
content_is_right('standby, forgotten', $later);
$old->quit;
$later->stop;

# ------------------------------------------------------- autovacuum's visits

$node->safe_psql('postgres', q{
SELECT narad.create_topic('auto', segment_size => '256kB');
INSERT INTO auto (value) SELECT nt.msg('a' || i, 1, 700) FROM generate_series(1, 1000) i;
VACUUM FREEZE auto;
INSERT INTO auto (value) VALUES ('"fresh"');
ALTER TABLE auto SET (autovacuum_freeze_max_age = 100000, autovacuum_freeze_table_age = 100000,
	autovacuum_freeze_min_age = 0, autovacuum_vacuum_insert_threshold = -1);
});
my $frozenxid = one_value($node, q{SELECT relfrozenxid FROM pg_class WHERE oid = 'auto'::regclass});
burn(300_000);
$node->append_conf('postgresql.conf', "autovacuum = on\nautovacuum_naptime = 1s\nlog_autovacuum_min_duration = 0");
my $log_at = -s $node->logfile;
$node->reload;
ok($node->poll_query_until('postgres',
	q{SELECT age(relfrozenxid) < 100000 FROM pg_class WHERE oid = 'auto'::regclass}),
	'autovacuum comes by itself when it has to');
ok(poll_until('its report is in the log', sub { slurp_file($node->logfile, $log_at) =~
	/topic "auto": about 1001 records in (\d+) pages, \d+ of \d+ segments frozen\n.*\n.*data pages: (\d+) read/ }),
	'and tells of it');
slurp_file($node->logfile, $log_at) =~ /topic "auto": about 1001 records in (\d+) pages.*\n.*\n.*data pages: (\d+) read/;
my ($npages, $nread) = ($1, $2);
cmp_ok($nread, '<=', one_value($node, q{SELECT count(DISTINCT (ctid::text::point)[0]) FROM auto
	WHERE msg_offset >= (SELECT first_offset FROM narad.segments WHERE topic = 'auto'::regclass AND state = 'open')}),
	"of $npages pages $nread are read: none but those of the open segment");
cmp_ok($nread, '<', $npages / 4, 'which are few');
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->reload;
is(one_value($node, 'SELECT count(*) FROM auto'), 1001, 'all is there');

# --------------------------------------------------------------------- damage

$node->safe_psql('postgres', q{
SELECT narad.create_topic('d', partitions => 2, segment_size => '256kB');
INSERT INTO d (partition, value) SELECT i % 2, nt.msg('d' || i, 1, 700) FROM generate_series(1, 1000) i;
});
my ($block) = split(/\|/, one_value($node, q{
SELECT (ctid::text::point)[0]::int FROM d WHERE partition = 0 AND msg_offset = 100}));
my $file = $node->data_dir . '/' . one_value($node, q{SELECT pg_relation_filepath('d')});
$node->stop;
open(my $fh, '+<:raw', $file) or die;
sysseek($fh, $block * 8192 + 5000, 0);
syswrite($fh, 'damage');
close($fh);
$node->start;
$frozenxid = one_value($node, q{SELECT relfrozenxid FROM pg_class WHERE oid = 'd'::regclass});
my ($ret, $out, $err) = $node->psql('postgres', 'VACUUM FREEZE d');
is($ret, 0, 'VACUUM of a damaged topic goes on');
like($err, qr/WARNING:  segment \d+ of partition 0 of topic "d" is not frozen, as it is damaged\n.*block $block\./, 'and warns');
is(one_value($node, q{SELECT count(*) FILTER (WHERE NOT frozen) || ' ' || (count(*) FILTER (WHERE frozen) > 3)
	FROM narad.segments WHERE topic = 'd'::regclass AND state = 'sealed'}), '1 true', 'one segment is left');
is(one_value($node, qq{SELECT relfrozenxid = '$frozenxid'::xid OR age(relfrozenxid) < age('$frozenxid'::xid) FROM pg_class WHERE oid = 'd'::regclass}),
	't', 'relfrozenxid does not go back');
is(one_value($node, q{SELECT count(*) > 980 FROM narad.consume('d', 100000)}), 't', 'consumers get what there is');

logs_are_clean('at the end', $standby, $later);
done_testing();
