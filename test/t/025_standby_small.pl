# Copyright (c) 2026, the Narad authors
#
# I7: a standby, and a server just promoted, know every record and lose none,
#     also where pages that were prepared are missing from the file; records
#     of prepared transactions are found again after a restart.
# I12: copies of a database hold topics of equal ids, which are not confused;
#     a prepared transaction cannot take a topic's file away.
#
# Extending a file is not WAL-logged, so a standby's files are shorter than
# the directory says.  Small topics show it at once.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $primary = narad_node('primary', streaming => 1,
	conf => ['max_prepared_transactions = 10']);
$primary->start;
$primary->safe_psql('postgres', q{
CREATE EXTENSION narad;
-- Of about n bytes, and not to be compressed.
CREATE FUNCTION noise(n int) RETURNS jsonb LANGUAGE sql AS
	$$ SELECT to_jsonb(string_agg(md5(random()::text || i), '')) FROM generate_series(1, n / 32) i $$;
});
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

# ------------------------------------------------------------ one small row

$primary->safe_psql('postgres', q{
SELECT narad.create_topic('one');
SELECT narad.create_topic('many', partitions => 5);
SELECT narad.create_topic('bare');
SELECT narad.create_group('bare', 'idle');
INSERT INTO one (value) VALUES ('1');
INSERT INTO many (partition, value) SELECT p, to_jsonb(p) FROM generate_series(0, 4, 2) p;
});
$primary->wait_for_catchup($standby);

my $long = narad_session($standby);
is($long->value("SELECT string_agg(value::text, ' ') FROM one"), '1', 'SELECT on a standby');
is($long->value("SELECT count(*) FROM many"), 3, 'SELECT of several partitions');
is($long->value("SELECT count(*) FROM many TABLESAMPLE system (100)"), 3, 'a sample');
is($long->value("SELECT string_agg(value::text, ' ') FROM narad.fetch('one', 0, 0)"), '1', 'fetch');
is($long->value("SELECT count(*) FROM many m, LATERAL narad.fetch('many', m.partition, 0) f"), 3,
	'fetch of several partitions');
is($long->value("SELECT count(*) FROM bare"), 0, 'a topic that never held anything');
foreach my $view (qw(topics partitions groups leases))
{
	is($long->try("SELECT * FROM narad.$view"), '00000', "narad.$view") or diag($long->{error});
}
is($long->value(q{SET force_parallel_mode = on; SET parallel_setup_cost = 0;
SET min_parallel_table_scan_size = 0; SELECT count(*) FROM many;
RESET force_parallel_mode; RESET parallel_setup_cost; RESET min_parallel_table_scan_size}), 3,
	'a parallel scan')
  if $standby->pg_version < 16;

# ------------------------------------------- a long session, with appends on

my $sum = 1;
foreach my $round (1 .. 30)
{
	$primary->safe_psql('postgres',
		"INSERT INTO one (value) SELECT noise(2000 + i) FROM generate_series(1, $round) i");
	$sum += $round;
	$primary->wait_for_catchup($standby);
	my $got = $long->value("SELECT count(*) FROM narad.fetch('one', 0, 0, 10000)");
	my $end = $long->value("SELECT end_offset FROM narad.offsets('one')");
	next if $got == $sum && $end == $sum && $long->value('SELECT count(*) FROM one') == $sum;
	fail("round $round: $got of $sum records, end $end");
	last;
}
is($long->value("SELECT count(*) FROM narad.fetch('one', 0, 0, 10000)"), $sum,
	'a session of a standby sees all that is appended meanwhile');
is($long->value("SELECT count(*) FROM narad.fetch('one', 0, $_, 1)"), 1, "fetch at $_")
  foreach (0, 1, int($sum / 2), $sum - 1);
unlike(slurp_file($standby->logfile), qr/skipping damaged/, 'nothing is taken for damage');

# --------------------------------------------------- databases made by copy

$primary->safe_psql('postgres', 'CREATE DATABASE origin');
$primary->safe_psql('origin', q{
CREATE EXTENSION narad;
SELECT narad.create_topic('t');
SELECT narad.produce_batch('t', ARRAY['1', '2', '3']::jsonb[]);
SELECT narad.ack(receipt) FROM narad.consume('t', 1);
});
foreach my $strategy ('wal_log', 'file_copy')
{
	# The worker of the origin may be connected for a moment.
	poll_until("$strategy: the database is copied", sub {
		my ($ret) = $primary->psql('postgres',
			"CREATE DATABASE copy_$strategy TEMPLATE origin STRATEGY $strategy");
		return $ret == 0;
	});
}
my @dbs = qw(origin copy_wal_log copy_file_copy);
is(one_value($primary, "SELECT string_agg(value::text, ' ' ORDER BY msg_offset) FROM t", $_),
	'1 2 3', "$_: SELECT") foreach @dbs;
is(one_value($primary, "SELECT string_agg(value::text, ' ' ORDER BY msg_offset) FROM narad.consume('t', 1)",
		$_), '2', "$_: consume knows what was acked, and no lease of another database")
  foreach @dbs;
foreach my $db (@dbs)
{
	is(one_value($primary, "SELECT msg_offset FROM narad.produce('t', to_jsonb('$db'::text))", $db),
		3, "$db: offsets go on");
}
foreach my $db (@dbs)
{
	is(one_value($primary, q{SELECT string_agg(value #>> '{}', ' ' ORDER BY msg_offset)
FROM narad.fetch('t', 0, 0)}, $db), "1 2 3 $db", "$db: its own records");
	is(one_value($primary, q{SELECT count(narad.ack(receipt)) FROM narad.consume('t', 10)}, $db),
		2, "$db: and leases");
}
# Dropping one leaves the others'.
$primary->safe_psql('copy_wal_log', 'DROP TABLE t');
is(one_value($primary, q{SELECT count(*) FROM narad.consume('t', 10)}, 'origin'), 0,
	'a topic of the same id in another database goes on');
is(one_value($primary, q{SELECT msg_offset FROM narad.produce('t', '1')}, 'origin'), 4,
	'with its offsets');
$primary->wait_for_catchup($standby);
is(one_value($standby, q{SELECT string_agg(value #>> '{}', ' ' ORDER BY msg_offset)
FROM narad.fetch('t', 0, 0)}, $_), "1 2 3 $_", "$_: on the standby") foreach ('copy_file_copy');

# ------------------------------------------------------ prepared transactions

$primary->safe_psql('postgres', q{
SELECT narad.create_topic('twophase', segment_size => '256kB');
CREATE TABLE plain (a int);
});
my $old = narad_session($primary);
$old->rows('BEGIN');
$old->rows('SELECT pg_current_xact_id()');
$primary->safe_psql('postgres', qq{
BEGIN; INSERT INTO twophase (value) VALUES ('"p$_"'); PREPARE TRANSACTION 'p$_'}) foreach (1, 2);
$old->rows("INSERT INTO twophase (value) SELECT noise(4000 + i) FROM generate_series(1, 300) i");
$old->rows('COMMIT');
is($old->value("SELECT last_stable FROM narad.offsets('twophase')"), 0,
	'prepared transactions hold the last stable offset');
$old->quit;
$primary->restart;
# Consumers would note themselves what they find pending.
$primary->safe_psql('postgres', q{INSERT INTO twophase (value) VALUES ('"more"')});
is(one_value($primary, "SELECT last_stable FROM narad.offsets('twophase')"), 0,
	'and also after a restart');
is(one_value($primary, "SELECT count(*) FROM narad.consume('twophase', 1)"), 1,
	'what is committed is delivered');
$primary->safe_psql('postgres', "COMMIT PREPARED 'p1'");
is(one_value($primary, "SELECT last_stable FROM narad.offsets('twophase')"), 1, 'until they end');
$primary->safe_psql('postgres', "ROLLBACK PREPARED 'p2'");
is(one_value($primary, "SELECT last_stable = end_offset FROM narad.offsets('twophase')"), 't',
	'both');

my $s = narad_session($primary);
foreach my $ddl (
	'DROP TABLE twophase',
	'TRUNCATE twophase',
	"SELECT narad.purge_topic('twophase')",
	'ALTER TABLE twophase SET UNLOGGED',
	'CREATE TABLE other (LIKE twophase) USING narad',
	"SELECT narad.create_topic('other')",
	"SAVEPOINT a; DROP TABLE twophase; RELEASE a",
	'CREATE TABLE other (LIKE twophase) USING narad; DROP TABLE other')
{
	$s->rows('BEGIN');
	my $state = $s->try($ddl);
	if ($state ne '00000')
	{
		# Refused already.
		is($state, '0A000', "$ddl is refused");
		$s->rows('ROLLBACK');
		next;
	}
	is($s->try("PREPARE TRANSACTION 'ddl'"), '0A000', "PREPARE after $ddl is refused");
	is($s->value("SELECT count(*) FROM pg_prepared_xacts"), 0, 'and rolls back');
}
foreach my $ddl (
	'DROP TABLE plain',
	'TRUNCATE plain',
	'CREATE TABLE other (a int)',
	"SAVEPOINT a; DROP TABLE twophase; ROLLBACK TO a",
	"SAVEPOINT a; SELECT narad.create_topic('other'); ROLLBACK TO a",
	"SELECT narad.produce('twophase', '1')")
{
	$s->rows("BEGIN; $ddl");
	is($s->try("PREPARE TRANSACTION 'ddl'"), '00000', "PREPARE after $ddl") or diag($s->{error});
	is($s->try("ROLLBACK PREPARED 'ddl'"), '00000', 'and its end');
}
is($s->value("SELECT count(*) FROM twophase"), 302, 'the topic is there as before');
$s->quit;

# ----------------------------------------------------------------- promotion

$primary->safe_psql('postgres', q{
SELECT narad.create_topic('last_minute', partitions => 2);
INSERT INTO last_minute (partition, value) VALUES (0, '1');
});
$primary->wait_for_catchup($standby);
is($long->value('SELECT count(*) FROM last_minute'), 1, 'before promotion: SELECT');
$primary->stop('fast');
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
is($long->value('SELECT count(*) FROM last_minute'), 1, 'after promotion: SELECT');
is($long->value("SELECT count(*) FROM narad.fetch('last_minute', 0, 0)"), 1, 'fetch');
is($long->value("SELECT count(*) FROM narad.fetch('one', 0, 0, 10000)"), $sum,
	'fetch of the long session');
is(one_value($standby, 'SELECT count(*) FROM one'), $sum, 'SELECT of another');
is(one_value($standby, 'ANALYZE one; SELECT count(*) FROM one'), $sum, 'ANALYZE');
is(one_value($standby, 'SELECT count(*) FROM one TABLESAMPLE system (100)'), $sum, 'a sample');
is(one_value($standby, "SELECT count(*) FROM narad.consume('last_minute', 10)"), 1, 'consume');
is(one_value($standby, "SELECT count(*) FROM narad.consume('many', 10)"), 3,
	'consume of several partitions');
is(one_value($standby, "SELECT count(*) FROM narad.consume('bare', 10, consumer_group => 'idle')"), 0,
	'consume of nothing');
is(one_value($standby, "SELECT msg_offset FROM narad.produce('last_minute', '2', partition => 0)"), 1,
	'offsets go on');
is($long->value("SELECT count(*) FROM narad.fetch('last_minute', 0, 0)"), 2, 'fetch of the new one');
is(one_value($standby, 'SELECT count(*) FROM last_minute'), 2, 'SELECT of it');
$long->quit;
unlike(slurp_file($standby->logfile), qr/skipping damaged|is damaged/, 'nothing was taken for damage');
$standby->stop;
logs_are_clean('small standby', $primary, $standby);
done_testing();
