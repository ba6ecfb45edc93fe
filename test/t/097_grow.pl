# Copyright (c) 2026, the Narad authors
#
# I1, I2, I6, I12: partitions are added to a topic in use: fifty sessions that
# produce, take and acknowledge meanwhile lose nothing and get nothing twice; a
# crash between the addition and the commit, a standby whose sessions knew fewer,
# and a promotion; and a topic of thousands takes memory for those in use.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

plan skip_all => 'the library has no stop points' unless $ENV{NARAD_TESTING};

my $node = narad_node('grow', streaming => 1, conf => [
	'autovacuum = off', 'max_connections = 80', 'max_prepared_transactions = 5', 'max_wal_size = 1GB',
	"wal_consistency_checking = 'narad'", "narad.memory_limit = '8MB'", "narad.frontier_write_interval = '20ms'" ]);
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
CREATE TABLE flushed (i int);
CREATE TABLE effect (partition int, msg_offset bigint, value jsonb);
-- Somebody else may have added more meanwhile.
CREATE FUNCTION grow_busy(n int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM narad.alter_topic('busy', partitions => partitions + n) FROM narad.topics
		WHERE topic = 'busy'::regclass;
EXCEPTION WHEN invalid_parameter_value THEN
	NULL;
END $$;
});
$node->safe_psql('postgres', slurp_file("$FindBin::RealBin/../narad_test/narad_test.sql"));
create_helpers($node);
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

sub partitions
{
	my ($where, $t) = @_;
	return one_value($where, "SELECT partitions FROM narad.topics WHERE topic = '$t'::regclass");
}

# ------------------------------------------------------------- fifty sessions

$node->safe_psql('postgres',
	"SELECT narad.create_topic('busy', partitions => 2, visibility_timeout => '1 hour')");
my $script = $node->basedir . '/busy.sql';
append_to_file($script, q{\set k random(1, 1000)
BEGIN;
SELECT count(*) FROM narad.produce('busy', to_jsonb(:client_id * 1000000 + :k), key => 'key' || :k);
WITH m AS MATERIALIZED (SELECT * FROM narad.consume('busy', 3)),
	e AS (INSERT INTO effect SELECT partition, msg_offset, value FROM m)
SELECT narad.ack(array_agg(receipt)) FROM m HAVING count(*) > 0;
COMMIT;
});
my $growth = $node->basedir . '/growth.sql';
append_to_file($growth, q{\set n random(1, 4)
SELECT grow_busy(:n);
SELECT narad.create_group('busy', 'group' || :client_id || '.' || :n, 'latest');
});
$node->command_ok([ 'pgbench', '-n', '-c', 50, '-j', 2, '-t', 12, '-f', "$script\@9", '-f', "$growth\@1",
		'--max-tries=1', 'postgres' ], 'fifty sessions produce, take, and add partitions');
my $n = partitions($node, 'busy');
cmp_ok($n, '>', 2, "the topic has $n partitions");
is(one_value($node, 'SELECT count(*) - count(DISTINCT (partition, msg_offset)) FROM effect'), '0', 'nothing was delivered twice');
my $s = narad_session($node);
while ($s->value("WITH m AS MATERIALIZED (SELECT * FROM narad.consume('busy', 1000)), e AS (INSERT INTO effect"
		  . " SELECT partition, msg_offset, value FROM m RETURNING 1), a AS (SELECT narad.ack(array_agg(receipt)) FROM m HAVING count(*) > 0)"
		  . " SELECT count(*) FROM m, (SELECT count(*) FROM a) x")) { }
is(one_value($node, 'SELECT count(*), count(DISTINCT (partition, msg_offset)) FROM effect'),
	one_value($node, 'SELECT count(*), count(*) FROM busy'), 'every message was delivered once');
is(one_value($node, 'SELECT count(*) FROM (SELECT * FROM effect EXCEPT SELECT partition, msg_offset, value FROM busy) x'), '0',
	'as it was produced');
is(one_value($node, "SELECT count(*) FROM narad.verify('busy')"), '0', 'verify');
is(one_value($node, "SELECT count(DISTINCT partition) FROM narad.groups WHERE topic = 'busy'::regclass AND consumer_group = 'default'"),
	$n, 'the group is in all partitions');

# ------------------------------------------ on disk, and not in memory yet

# Who reads the new number from the disk, and wants one of the new partitions,
# waits until memory has it, too.
$node->safe_psql('postgres', "SELECT narad.create_topic('half', partitions => 2); SELECT narad.produce('half', '0', partition => 0)");
my $half = narad_session($node);
$half->backend_pid;
$node->safe_psql('postgres', "SELECT narad_test.stop_arm('growing')");
$half->send("SELECT narad.alter_topic('half', partitions => 4)");
$node->safe_psql('postgres', "SELECT narad_test.stop_wait('growing')");
my $early = narad_session($node);
my $early_pid = $early->backend_pid;
$early->send("SELECT partition FROM narad.produce('half', '3', partition => 3)");
ok(poll_until('it waits', sub {
	one_value($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $early_pid") eq 'LWLock' }),
	'a session that knows of a partition before memory does waits');
$node->safe_psql('postgres', "SELECT narad_test.stop_release('growing')");
is($early->finish, '00000', 'and goes on');
is($early->{rows}[0][0], '3', '... in that partition');
is($half->finish, '00000', 'the partitions are added');
is(one_value($node, "SELECT count(*) FROM narad.consume('half', 10)"), '2', 'and all is delivered');
$_->quit foreach ($half, $early);

# -------------------------------- a standby's session that knew fewer; a crash

$node->safe_psql('postgres', "SELECT narad.create_topic('t', partitions => 2)");
$node->safe_psql('postgres', "SELECT count(*) FROM narad.produce_batch('t', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 10) i))");
$node->wait_for_catchup('standby');
my $reader = narad_session($standby);
is($reader->value("SELECT count(*) FROM narad.offsets('t')"), '2', 'the standby sees two partitions');

my $grower = narad_session($node);
$grower->backend_pid;
$node->safe_psql('postgres', "SELECT narad_test.stop_arm('grown')");
$grower->send("SELECT narad.alter_topic('t', partitions => 5, visibility_timeout => '77 s')");
$node->safe_psql('postgres', "SELECT narad_test.stop_wait('grown')");
is(partitions($node, 't'), '5', 'partitions are there before the commit');
$node->safe_psql('postgres', "SELECT narad.produce('t', '\"new\"', partition => 4); INSERT INTO flushed VALUES (1)");
$node->wait_for_catchup('standby');
is($reader->value("SELECT count(*) FROM narad.offsets('t')"), '5', 'a session of the standby sees five');
is($reader->value("SELECT value FROM narad.fetch('t', 4, 0)"), '"new"', 'and what is in them');
$node->stop('immediate');
$node->start;
$grower->quit;
$s->quit;
is(partitions($node, 't'), '5', 'after a crash they are there, since others used them');
is(one_value($node, "SELECT visibility_timeout FROM narad.topics WHERE topic = 't'::regclass"), '00:00:30',
	'though the transaction did not commit');
is(one_value($node, "SELECT string_agg(value::text, ',') FROM narad.consume('t', 100) WHERE partition = 4"), '"new"',
	'and what is in them is delivered');

# ---------------------------------------------------------- prepared, promoted

$s = narad_session($node);
$s->rows('BEGIN');
$s->rows("SELECT narad.alter_topic('t', partitions => 6)");
is($s->try("PREPARE TRANSACTION 'grow'"), '0A000', 'cannot be prepared');
$s->quit;
is(partitions($node, 't'), '5', 'nothing was added');
$node->safe_psql('postgres', "SELECT narad.create_group('t', 'g', 'latest'); SELECT narad.alter_topic('t', partitions => 6);"
	  . " SELECT narad.produce('t', '\"sixth\"', partition => 5)");
$node->wait_for_catchup('standby');
$node->stop('immediate');
$standby->promote;
is($reader->value("SELECT string_agg(value::text, ',') FROM narad.consume('t', 100, consumer_group => 'g')"), '"sixth"',
	'promoted: the group starts at the beginning of what was added');
$reader->rows("SELECT narad.alter_topic('t', partitions => 7)");
$reader->rows("SELECT narad.produce('t', '\"seventh\"', partition => 6)");
is($reader->value("SELECT string_agg(value::text, ',') FROM narad.consume('t', 100, consumer_group => 'g')"), '"seventh"',
	'and in what is added then');
is(one_value($standby, "SELECT count(*) FROM narad.verify('t')"), '0', 'verify');
$reader->quit;
$node = $standby;

# ------------------------------------------------------------------- thousands

# 8 MB would not do for 4,096 partitions in use.
$node->safe_psql('postgres', "SELECT narad.create_topic('many', partitions => 4096); SELECT narad.create_group('many', 'g', 'latest')");
$node->safe_psql('postgres', "SELECT narad.produce('many', to_jsonb(i), partition => i) FROM generate_series(5, 4095, 500) i");
is(one_value($node, "SELECT count(*) FROM narad.consume('many', 100)"), '9', 'messages of a few partitions of thousands');
is(one_value($node, "SELECT count(*) FROM narad.consume('many', 100, consumer_group => 'g')"), '9', 'for a second group');
$node->stop('immediate');
$node->start;
is(one_value($node, "SELECT string_agg(partition::text, ',' ORDER BY partition) FROM narad.consume('many', 100)"),
	join(',', map { 5 + 500 * $_ } 0 .. 8), 'and after a crash');
is(one_value($node, "SELECT count(*), sum(end_offset) FROM narad.partitions WHERE topic = 'many'::regclass"), '4096|9', 'the view shows all');
cmp_ok(one_value($node, "SELECT pg_relation_size('many')"), '<', 2 * 1024 * 1024, 'on disk it takes what it holds');

$node->stop;
log_is_clean($node, 'the log is clean');
done_testing();
