# Copyright (c) 2026, the Narad authors
#
# I1, I5: what replay makes of the WAL is what the primary has: every page
#     after every record (wal_consistency_checking), every message a standby
#     shows, every ack it knows once promoted.
# I7: fetch on a standby gives the same records as on the primary.
# I11: no page fails its checksum.
#
# A standby replays the regression suite and concurrent work, with full-page
# writes and without, and is restarted in the middle.  The primary crashes and
# recovers from the same.  At the end the standby takes over.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run ();

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $inputs = $ENV{NARAD_INPUTS} || "$FindBin::RealBin/../..";
my $primary = narad_node('primary', streaming => 1, conf => [
	"wal_consistency_checking = 'all, narad'", 'shared_buffers = 8MB',
	'max_connections = 60', 'max_prepared_transactions = 10',
	'max_wal_size = 512MB', 'wal_keep_size = 64MB',
	"narad.frontier_write_interval = '20ms'"]);
$primary->start;
$primary->safe_psql('postgres', q{
CREATE EXTENSION narad;
CREATE EXTENSION pg_walinspect;
SELECT pg_create_physical_replication_slot('standby');
});
create_helpers($primary);

$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "primary_slot_name = 'standby'");
$standby->start;

is(one_value($primary, 'SHOW wal_consistency_checking'), 'all, narad',
	'consistency checking covers narad');

# ---------------------------------------------------------------- the work

# Everything once, in one session: topics of all shapes, large records, gaps,
# state too large for one page, groups that come and go.
my $broad = q{
CREATE TABLE IF NOT EXISTS effect (topic text, part int, off bigint);
SELECT narad.create_topic('b_one', max_in_flight => 100000, max_acked_ahead => 100000);
SELECT narad.create_topic('b_many', partitions => 20, segment_size => '256kB');
SELECT narad.create_topic('b_large', partitions => 2, segment_size => '4MB');
SELECT narad.create_topic('b_bytes', value_type => 'bytea');
SELECT narad.create_topic('b_gone', partitions => 3);
SELECT narad.create_group('b_one', 'late', 'latest');
SELECT narad.create_group('b_many', 'other');
SELECT count(*) FROM narad.produce_batch('b_one',
	ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 40000) i));
INSERT INTO b_many (key, value) SELECT 'k' || i % 100, nt.msg('i' || i, 1, i % 3000)
FROM generate_series(1, 3000) i;
INSERT INTO b_large (value) SELECT nt.msg('l' || i, 1, 1 << i) FROM generate_series(8, 21) i;
SELECT count(*) FROM narad.produce_batch_bytes('b_bytes',
	ARRAY(SELECT decode(md5(i::text), 'hex') FROM generate_series(1, 500) i));
BEGIN;
SELECT count(*) FROM narad.produce_batch('b_many',
	ARRAY(SELECT nt.msg('a' || i, 1, 500) FROM generate_series(1, 500) i));
INSERT INTO b_large (value) VALUES (nt.msg('a', 1, 300000));
ROLLBACK;
BEGIN;
SELECT count(*) FROM narad.produce('b_many', nt.msg('s1', 1, 10));
SAVEPOINT s;
INSERT INTO b_many (value) SELECT nt.msg('s2.' || i, 1, 800) FROM generate_series(1, 50) i;
ROLLBACK TO s;
INSERT INTO b_many (value) SELECT nt.msg('s3.' || i, 1, 800) FROM generate_series(1, 50) i;
COMMIT;
-- Every second message: thousands of ranges.
SELECT narad.ack(array_agg(receipt) FILTER (WHERE msg_offset % 2 = 0))
FROM narad.consume('b_one', 30000);
BEGIN;
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('b_one', 5000) HAVING count(*) > 0;
INSERT INTO effect VALUES ('b_one', 0, 0);
COMMIT;
BEGIN;
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('b_many', 700, consumer_group => 'other');
INSERT INTO effect VALUES ('b_many', 0, 0);
ROLLBACK;
SELECT narad.nack(array_agg(receipt)) FROM narad.consume('b_many', 300, consumer_group => 'other');
SELECT narad.drop_group('b_many', 'other');
SELECT narad.create_group('b_many', 'again');
SELECT narad.pause_group('b_many', 'again');
SELECT narad.resume_group('b_many', 'again');
SELECT count(*) FROM narad.produce_batch('b_gone',
	ARRAY(SELECT nt.msg('g' || i, 1, 100) FROM generate_series(1, 300) i));
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('b_gone', 100);
BEGIN;
SELECT narad.purge_topic('b_gone');
SELECT narad.produce('b_gone', '"rolled back"');
ROLLBACK;
SELECT narad.purge_topic('b_gone');
SELECT count(*) FROM narad.produce_batch('b_gone',
	ARRAY(SELECT nt.msg('h' || i, 1, 100) FROM generate_series(1, 300) i));
ANALYZE b_many;
VACUUM b_many;
};

my $drop = 'SELECT narad.drop_topic(t) FROM unnest(ARRAY'
  . q{['b_one', 'b_many', 'b_large', 'b_bytes', 'b_gone']::regclass[]) t};

# And in many sessions at once.
my $scripts = PostgreSQL::Test::Utils::tempdir;
append_to_file("$scripts/produce.sql", q{
\set n random(1, 20)
\set len random(1, 4000)
\set end random(1, 10)
BEGIN;
SELECT count(*) FROM narad.produce_batch('c_many',
	ARRAY(SELECT nt.msg('p:client_id.' || i, 1, :len) FROM generate_series(1, :n) i));
SAVEPOINT s;
SELECT narad.produce('c_one', nt.msg('q', 1, :len * 5));
\if :end <= 2
ROLLBACK TO s;
\endif
\if :end = 3
ROLLBACK;
\else
COMMIT;
\endif
});
append_to_file("$scripts/consume.sql", q{
\set end random(1, 10)
BEGIN;
WITH m AS MATERIALIZED (SELECT * FROM narad.consume('c_many', 15)),
	e AS (INSERT INTO effect SELECT 'c_many', partition, msg_offset FROM m)
SELECT narad.ack(array_agg(receipt)) FROM m HAVING count(*) > 0;
\if :end = 1
ROLLBACK;
\else
COMMIT;
\endif
SELECT narad.ack(array_agg(receipt) FILTER (WHERE msg_offset % 3 <> 0))
FROM narad.consume('c_one', 10, visibility_timeout => '2 s') HAVING bool_or(msg_offset % 3 <> 0);
});

my $nbench = 0;

sub start_pgbench
{
	my ($transactions) = @_;
	my $handle = { file => "$scripts/out." . ++$nbench };
	$handle->{run} = IPC::Run::start(
		[   'pgbench', '-n', '-c', '6', '-j', '2', '-t', $transactions,
			'-f', "$scripts/produce.sql", '-f', "$scripts/consume.sql",
			$primary->connstr('postgres') ],
		'<', '/dev/null', '>&', $handle->{file});
	return $handle;
}

sub wait_for_effects
{
	my ($bench, $n) = @_;
	$primary->poll_query_until('postgres', "SELECT count(*) > $n FROM effect")
	  or diag(slurp_file($bench->{file}));
	return;
}

sub run_regress
{
	my ($name) = @_;
	my $out = PostgreSQL::Test::Utils::tempdir;
	my @tests = map { m{/([^/]+)\.sql$} ? $1 : () } sort glob("$inputs/sql/*.sql");

	return unless @tests;
	# It looks for psql in this folder.
	my ($bin) = grep { -x "$_/psql" } split(/:/, $ENV{PATH});
	my $ret = system_log($ENV{PG_REGRESS}, "--inputdir=$inputs", "--outputdir=$out",
		"--bindir=$bin", '--host=' . $primary->host, '--port=' . $primary->port,
		'--dbname=narad_regression', '--load-extension=narad', @tests);
	is($ret, 0, "$name: the regression suite passes")
	  or diag(-e "$out/regression.diffs"
		? substr(slurp_file("$out/regression.diffs"), 0, 6000) : 'no differences');
	return;
}

sub restart_standby
{
	my ($mode) = @_;
	$standby->stop($mode);
	$standby->start;
	return;
}

sub compare
{
	my ($name, @dbs) = @_;
	$primary->wait_for_catchup($standby);
	foreach my $db (@dbs)
	{
		my $there = topic_hash($primary, $db);
		is(topic_hash($standby, $db), $there, "$name: topics of $db are the same on the standby");
		like($there, qr/\|/, "$name: there are some in $db");
	}
	return;
}

# --------------------------------------------------------------- the checks

$primary->safe_psql('postgres', q{
CREATE TABLE effect (topic text, part int, off bigint);
SELECT narad.create_topic('c_many', partitions => 4, segment_size => '256kB');
SELECT narad.create_topic('c_one');
});

foreach my $fpw ('on', 'off')
{
	my $name = "full_page_writes $fpw";
	$primary->safe_psql('postgres', "ALTER SYSTEM SET full_page_writes = $fpw");
	$primary->reload;
	$primary->poll_query_until('postgres', "SELECT current_setting('full_page_writes') = '$fpw'");
	$primary->safe_psql('postgres', 'CHECKPOINT');
	my $start = $primary->lsn('insert');

	my ($ret, undef, $errors) = $primary->psql('postgres', $broad, on_error_stop => 1);
	is($ret, 0, "$name: the broad work succeeds") or diag($errors);
	my $end = $primary->lsn('flush');
	is($primary->safe_psql('postgres', qq{
SELECT count(*) > 100, bool_and(length(description) > 0), bool_or(record_type ~ 'UNKNOWN'),
	bool_and(fpi_length > 0 OR block_ref = '' OR block_ref IS NULL)
FROM pg_get_wal_records_info('$start', '$end') WHERE resource_manager = 'narad'}),
		't|t|f|t', "$name: every record of narad carried images, and describes itself");
	$primary->safe_psql('postgres', 'CHECKPOINT');
	my $bench = start_pgbench(40);
	restart_standby($fpw eq 'on' ? 'fast' : 'immediate');
	ok(IPC::Run::finish($bench->{run}), "$name: concurrent sessions succeed")
	  or diag(slurp_file($bench->{file}));
	run_regress($name);
	create_helpers($primary, 'narad_regression')
	  if one_value($primary, "SELECT count(*) FROM pg_database WHERE datname = 'narad_regression'");
	compare($name, 'postgres');
	is(topic_hash($standby, 'narad_regression'), topic_hash($primary, 'narad_regression'),
		"$name: topics left by the suite are the same on the standby")
	  if one_value($primary, "SELECT count(*) FROM pg_database WHERE datname = 'narad_regression'");

	$primary->safe_psql('postgres', $drop);
}

# What a standby answers.
$primary->safe_psql('postgres', $broad);
$primary->wait_for_catchup($standby);
my $s = narad_session($standby);
foreach my $call (
	"narad.consume('b_one')",
	"narad.consume('b_one', wait => '0')",
	"narad.consume_bytes('b_bytes')",
	"narad.produce('b_one', '1')",
	"narad.produce_batch('b_one', ARRAY['1']::jsonb[])",
	"narad.produce_array('b_one', '[1]')",
	"narad.produce_bytes('b_bytes', '1')",
	"narad.create_topic('b_new')",
	"narad.create_group('b_one', 'new')",
	"narad.drop_group('b_many', 'again')",
	"narad.pause_group('b_many', 'again')",
	"narad.purge_topic('b_one')",
	"narad.drop_topic('b_one')")
{
	is($s->try("SELECT * FROM $call"), '25006', "a standby refuses $call") or diag($s->{error});
}
my $receipt = one_value($primary, "SELECT receipt FROM narad.consume('b_many')");
foreach my $call ("ack('$receipt')", "ack(ARRAY['$receipt'])", "try_ack(ARRAY['$receipt'])",
	"nack('$receipt')", "extend('$receipt')")
{
	is($s->try("SELECT narad.$call"), '25006', "a standby refuses " . ($call =~ s/\(.*//r))
	  or diag($s->{error});
}
is($s->try("INSERT INTO b_one (value) VALUES ('1')"), '25006', 'a standby refuses INSERT');
cmp_ok($s->value('SELECT count(*) FROM b_many'), '>', 3000, 'a standby answers SELECT');
foreach my $view (qw(topics partitions groups leases))
{
	is($s->try("SELECT * FROM narad.$view"), '00000', "a standby shows narad.$view")
	  or diag($s->{error});
}
cmp_ok($s->value("SELECT count(*) FROM narad.fetch('b_one', 0, 100, 50)"), '==', 50,
	'a standby answers fetch');
is($s->try("SELECT * FROM narad.fetch('b_one', 0, 10000000)"), 'NR416',
	'a standby knows the end');
# Records of a transaction that is still open: I3 and I7 hold there too.
my $open = narad_session($primary);
$open->rows('BEGIN');
$open->rows("INSERT INTO b_gone (value, key) VALUES ('\"open\"', 'k')");
$primary->safe_psql('postgres', "INSERT INTO b_gone (value, key) VALUES ('\"after\"', 'k')");
$primary->wait_for_catchup($standby);
is($s->value(q{SELECT count(*) FROM narad.offsets('b_gone') o, nt.fetch_all('b_gone', o.partition) f
WHERE f.value IN ('"open"', '"after"')}), 0,
	'fetch on a standby stops before a record that may still commit');
is($s->value(q{SELECT count(*) FROM b_gone WHERE value IN ('"open"', '"after"')}), 1,
	'a scan on a standby shows what is committed');
$open->rows('COMMIT');
$primary->wait_for_catchup($standby);
is($s->value(q{SELECT string_agg(f.value #>> '{}', ' ' ORDER BY f.msg_offset)
FROM narad.offsets('b_gone') o, nt.fetch_all('b_gone', o.partition) f
WHERE f.value IN ('"open"', '"after"')}), 'open after', 'then it goes on');
$open->quit;
$s->quit;

# The primary's own recovery, checked the same way.
foreach my $fpw ('on', 'off')
{
	$primary->safe_psql('postgres', "ALTER SYSTEM SET full_page_writes = $fpw");
	$primary->reload;
	my $before = one_value($primary, 'SELECT count(*) FROM effect');
	my $bench = start_pgbench(100000);
	wait_for_effects($bench, $before + 200);
	$primary->safe_psql('postgres', 'CHECKPOINT') if $fpw eq 'on';
	wait_for_effects($bench, $before + 400);
	$primary->stop('immediate');
	IPC::Run::finish($bench->{run});
	$primary->start;
	compare("after a crash, full_page_writes $fpw", 'postgres');
	is(one_value($primary, 'SELECT count(*) - count(DISTINCT (topic, part, off)) FROM effect'
			. " WHERE topic = 'c_many'"), '0', "every effect once, full_page_writes $fpw");
}

# The standby takes over: it knows every ack.
$primary->safe_psql('postgres', q{
SELECT narad.create_topic('promoted');
SELECT count(*) FROM narad.produce_batch('promoted',
	ARRAY(SELECT to_jsonb(i) FROM generate_series(0, 99) i));
SELECT narad.ack(array_agg(receipt) FILTER (WHERE msg_offset % 5 = 0))
FROM narad.consume('promoted', 40);
BEGIN;
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('promoted', 30);
INSERT INTO effect VALUES ('promoted', 0, 0);
COMMIT;
BEGIN;
SELECT narad.produce('promoted', '"prepared"');
PREPARE TRANSACTION 'of the old primary';
});
$primary->stop('fast');
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
is(one_value($standby, q{
SELECT count(*), count(*) FILTER (WHERE msg_offset < 40 AND msg_offset % 5 <> 0),
	count(*) FILTER (WHERE msg_offset >= 70)
FROM narad.consume('promoted', 1000)}), '62|32|30',
	'after promotion what was not acked comes, and nothing else');
is(one_value($standby, "SELECT last_stable FROM narad.offsets('promoted')"), '100',
	'a transaction prepared on the primary is still open');
$standby->safe_psql('postgres', "COMMIT PREPARED 'of the old primary'");
is(one_value($standby, "SELECT string_agg(value::text, ' ') FROM narad.consume('promoted', 1000)"),
	'"prepared"', 'and its message comes when it is committed');
is(one_value($standby, "SELECT msg_offset >= 100 FROM narad.produce('promoted', '1')"), 't',
	'offsets go on');
is(one_value($standby, "SELECT epoch FROM narad.offsets('promoted')"), '2',
	'the first append after a promotion begins an epoch');
is(one_value($standby, q{SELECT narad.ack(array_agg(receipt)) IS NOT NULL
FROM narad.consume('b_many', 100)}), 't', 'consumers go on');
$standby->stop;
logs_are_clean('consistency', $primary, $standby);
done_testing();
