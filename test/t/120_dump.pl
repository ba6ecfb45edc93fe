# Copyright (c) 2026, the Narad authors
#
# I1: a group that is restored from a dump is never past a message that it had
#     not settled, whatever was dumped, left out, or restored twice.
# I12: what was saved of a topic that was dropped is gone with it; what was
#     saved before a TRUNCATE never counts after it.
#
# pg_dump in all formats keeps positions and times of messages; that of a whole
# database brings consumer groups along, as they were saved last.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('dump', conf => [ 'autovacuum = off', 'max_worker_processes = 40' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE source');
$node->safe_psql('source', 'CREATE EXTENSION narad');
create_helpers($node, 'source');

my $dir = PostgreSQL::Test::Utils::tempdir;
my @conn = ('-h', $node->host, '-p', $node->port);

sub value { my ($db, $sql) = @_; return one_value($node, $sql, $db); }

# What a group gets, its pause lifted: each partition's offsets.
sub comes
{
	my ($db, $t, $group) = @_;
	$node->safe_psql($db, "SELECT narad.resume_group('$t', '$group')") if $group eq 'paused';
	return value($db, "SELECT coalesce(string_agg(p || ':' || o, ' ' ORDER BY p), '') FROM"
		  . " (SELECT partition p, string_agg(msg_offset::text, ',' ORDER BY msg_offset) o"
		  . " FROM narad.consume('$t', 1000, consumer_group => '$group') GROUP BY 1) s");
}

sub groups
{
	my ($db) = @_;
	return value($db, q{SELECT string_agg(DISTINCT topic || ' ' || consumer_group || ' ' || paused, E'\n' ORDER BY
topic || ' ' || consumer_group || ' ' || paused) FROM narad.groups WHERE topic = 'orders'::regclass});
}

sub saved
{
	my ($db, $columns) = @_;
	$columns ||= 'paused, frontiers';
	return value($db, "SELECT string_agg(concat_ws(' ', topic, consumer_group, $columns), E'\n'"
		  . ' ORDER BY topic::text, consumer_group) FROM narad.saved_frontiers');
}

sub make_db
{
	my ($db) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	return $db;
}

# A restart before which the worker of a database, which saves, is there.
sub restart_saving
{
	my ($db) = @_;
	poll_until("$db has a worker", sub {
		value($db, "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'narad worker%'"
			  . ' AND datname = current_database()') > 0 });
	$node->restart;
	return;
}

# ---- what is dumped --------------------------------------------------------

# Offsets: 0 to 5, a gap, 8 to 11; one aborted at the end.
$node->safe_psql('source', q{
CREATE SCHEMA app;
SELECT narad.create_topic('orders', visibility_timeout => '1 hour');
SELECT narad.produce_array('orders', '[0, 1, 2, 3, 4, 5]');
BEGIN; SELECT narad.produce_array('orders', '[6, 7]'); ROLLBACK;
SELECT narad.produce_array('orders', '["a", "b", "c", "d"]');
BEGIN; SELECT narad.produce_array('orders', '[12]'); ROLLBACK;
SELECT narad.create_topic('app.raw', value_type => 'bytea', max_in_flight => 77);
SELECT narad.produce_bytes('app.raw', '\x00ff', key => 'k', headers => '{"h": 1}');
SELECT narad.create_topic('several', partitions => 4);
SELECT narad.produce_batch('several', ARRAY['0', '1', '2']::jsonb[], partition => 0);
SELECT narad.produce_batch('several', ARRAY['0', '1']::jsonb[], partition => 2);
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('several', 2, partition => 2);
CREATE TABLE plain (a int);
INSERT INTO plain SELECT generate_series(1, 100);
-- Settled to 3 and, above that, 5; all; nothing; paused at the end.
SELECT narad.create_group('orders', 'all');
SELECT narad.create_group('orders', 'nothing');
SELECT narad.create_group('orders', 'paused', 'latest');
SELECT narad.pause_group('orders', 'paused');
WITH m AS MATERIALIZED (SELECT * FROM narad.consume('orders', 6))
SELECT narad.ack(array_agg(receipt)) FROM m WHERE msg_offset IN (0, 1, 2, 3, 5);
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('orders', 100, consumer_group => 'all');
SELECT count(*) FROM narad.consume('orders', 100, consumer_group => 'nothing');
SELECT count(*) FROM narad.consume('orders', 100, consumer_group => 'all');
});
is(value('source', 'SELECT count(*) FROM narad.saved_frontiers'), 0, 'nothing is saved before its time');
restart_saving('source');
is(saved('source'), join("\n", 'orders all f {13}', 'orders default f {4}', 'orders nothing f {0}', 'orders paused t {13}',
		'several default f {0,0,2,0}'),
	'a clean stop saves all groups');
my $versions = saved('source', 'ctid, saved_at');
$node->safe_psql('source', "SELECT * FROM narad.groups; SELECT count(*) FROM narad.consume('orders', 1, consumer_group => 'all')");
restart_saving('source');
is(saved('source', 'ctid, saved_at'), $versions, 'and writes nothing where nothing has changed');

my $hash = topic_hash($node, 'source');
my $offsets = "SELECT string_agg(ARRAY[earliest, end_offset]::text, ' ') FROM narad.offsets('orders')";

# ---- whole databases, in all formats ----------------------------------------

my %format = (plain => ['-Fp'], custom => ['-Fc'], tar => ['-Ft'], directory => [ '-Fd', '-j', '2' ]);
foreach my $format (sort keys %format)
{
	my $file = "$dir/whole.$format";
	command_ok([ 'pg_dump', @conn, @{ $format{$format} }, '-f', $file, 'source' ], "$format: pg_dump");
	my $db = make_db("r_$format");
	command_ok($format eq 'plain' ?
		[ 'psql', '-Xq', @conn, '-v', 'ON_ERROR_STOP=1', '-d', $db, '-f', $file ] :
		[ 'pg_restore', @conn, '-e', ($format eq 'tar' ? () : ('-j', '2')), '-d', $db, $file ],
		"$format: restore");
	is(topic_hash($node, $db), $hash, "$format: messages, with their positions and times");
	is(value($db, $offsets), '{0,12}', "$format: the topic ends behind its last message");
	is(value($db, "SELECT max_in_flight FROM narad.topics WHERE topic = 'app.raw'::regclass"), 77, "$format: settings");
	# One that is asked for and missing brings them all.
	is(comes($db, 'orders', 'default'), '0:4,5,8,9,10,11', "$format: a group goes on at its frontier");
	is(comes($db, 'orders', 'all'), '', "$format: one that had settled all");
	is(groups($db), join("\n", 'orders all false', 'orders default false', 'orders nothing false', 'orders paused true'),
		"$format: groups and their pause");
	is(comes($db, 'orders', 'nothing'), '0:0,1,2,3,4,5,8,9,10,11', "$format: one that had settled nothing");
	is(value($db, "SELECT msg_offset FROM narad.produce('orders', '1')"), 12, "$format: offsets go on");
	is(comes($db, 'orders', 'paused'), '0:12', "$format: the paused one");
	is(comes($db, 'several', 'default'), '0:0,1,2', "$format: a group of several partitions");
	is(value($db, "SELECT partitions FROM narad.topics WHERE topic = 'several'::regclass"), 4, "$format: and all of these");
	is(value($db, "SELECT count(*) FROM narad.verify('orders')"), 0, "$format: all is well");
}
# As binary upgrades do, which copy files: it has to come out whole.
command_ok([ 'pg_dump', @conn, '--binary-upgrade', '--schema-only', '-f', "$dir/upgrade", 'source' ], 'a binary upgrade\'s dump');
like(slurp_file("$dir/upgrade"), qr/CREATE TABLE public\.orders/, 'has the topic');

# ---- the worker of the new database -----------------------------------------

{
	my $db = 'r_custom';
	restart_saving($db);
	like(saved($db), qr/^orders all f \{12\}\norders default f \{4\}\n/m, 'the new database saves its own');
	is(value($db, q{SELECT count(*) FROM narad.saved_frontiers s JOIN narad.topics t USING (topic)
WHERE s.topic_id = t.topic_id AND topic = 'orders'::regclass}), 4, 'under its own identity');
	$node->safe_psql($db, "BEGIN; SELECT narad.drop_group('orders', 'nothing'); ROLLBACK");
	restart_saving($db);
	unlike(saved($db), qr/nothing/, 'and forgets a group whose drop was rolled back');
	my (undef, undef, $error) = $node->psql($db, "SELECT * FROM narad.consume('orders', consumer_group => 'nothing')");
	like($error, qr/consumer group "nothing" of topic "orders" does not exist/, 'which stays dropped');
}
# Nobody asks for a group: the worker makes them when it starts.
{
	my $db = make_db('r_worker');
	command_ok([ 'pg_restore', @conn, '-e', '-d', $db, "$dir/whole.custom" ], 'restored');
	$node->safe_psql($db, "SELECT count(*) FROM narad.consume_bytes('app.raw', 1)");
	poll_until('the worker has made the groups', sub { groups($db) =~ /orders default false/ });
	is(comes($db, 'orders', 'default'), '0:4,5,8,9,10,11', 'the worker makes groups of other topics, too');
	# A restore that is under way is not anticipated.
	unlike(groups($db), qr/paused/, 'but not those that had settled what it does not see');
	is(comes($db, 'orders', 'all'), '', 'which are made when they are asked for');
	like(groups($db), qr/orders paused true/, 'one and all');
}

# ---- parts -------------------------------------------------------------------

# Tables of extensions are in whole dumps only.
{
	my $db = make_db('r_table');
	$node->safe_psql($db, 'CREATE EXTENSION narad');
	command_ok([ 'pg_dump', @conn, '-Fc', '-t', 'orders', '-f', "$dir/table", 'source' ], 'one table');
	command_ok([ 'pg_restore', @conn, '-e', '-d', $db, "$dir/table" ], 'is restored');
	is(value($db, $offsets), '{0,12}', 'with its offsets');
	is(comes($db, 'orders', 'default'), '0:0,1,2,3,4,5,8,9,10,11', 'and no groups: they begin at the earliest message');
}
{
	my $db = make_db('r_schema');
	$node->safe_psql($db, 'CREATE EXTENSION narad');
	command_ok([ 'pg_dump', @conn, '-n', 'app', '-f', "$dir/schema", 'source' ], 'one schema');
	command_ok([ 'psql', '-Xq', @conn, '-v', 'ON_ERROR_STOP=1', '-d', $db, '-f', "$dir/schema" ], 'is restored');
	is(value($db, q{SELECT msg_offset || ' ' || key || ' ' || value FROM narad.fetch_bytes('app.raw', 0, 0)}), '0 k \x00ff',
		'with its messages');
}
# Schema and data, from one archive, and as two dumps.
{
	my $db = make_db('r_sections');
	command_ok([ 'pg_restore', @conn, '-e', '--schema-only', '-d', $db, "$dir/whole.custom" ], 'the schema of an archive');
	command_ok([ 'pg_restore', @conn, '-e', '--data-only', '-d', $db, "$dir/whole.custom" ], 'then its data');
	is(comes($db, 'orders', 'default'), '0:4,5,8,9,10,11', 'makes the whole');

	$db = make_db('r_two');
	command_ok([ 'pg_dump', @conn, '-s', '-f', "$dir/s", 'source' ], 'a dump of the schema');
	command_ok([ 'pg_dump', @conn, '-a', '-f', "$dir/a", 'source' ], 'and one of the data');
	command_ok([ 'psql', '-Xq', @conn, '-v', 'ON_ERROR_STOP=1', '-d', $db, '-f', "$dir/$_" ], "restored: $_")
	  foreach ('s', 'a');
	is(comes($db, 'orders', 'default'), '0:4,5,8,9,10,11', 'does, too');
}

# A database in which topics are used while it is restored: rows before messages.
{
	my $db = make_db('r_during');
	$node->safe_psql($db, "CREATE EXTENSION narad; SELECT narad.create_topic('other'); SELECT narad.produce('other', '1');"
		  . " SELECT count(*) FROM narad.consume('other')");
	command_ok([ 'pg_restore', @conn, '-e', '-d', $db, '-s', '-t', 'orders', '-t', 'several',
			"$dir/whole.custom" ], 'the topic is made');
	command_ok([ 'pg_restore', @conn, '-e', '-d', $db, '-a', '-t', 'saved_frontiers', "$dir/whole.custom" ], 'rows are restored');
	restart_saving($db);
	$node->safe_psql($db, "SELECT narad.ack(receipt) FROM narad.consume('other')");
	restart_saving($db);
	command_ok([ 'pg_restore', @conn, '-e', '-d', $db, '-a', '-t', 'orders', "$dir/whole.custom" ], 'then messages');
	is(comes($db, 'orders', 'default'), '0:4,5,8,9,10,11', 'and the group is where it was');
}

# ---- a topic that holds other messages than those dumped ----------------------

# Messages left out, others in their place: none of them is taken for settled.
{
	my $db = make_db('r_other');
	command_ok([ 'pg_dump', @conn, '--exclude-table-data=orders', '-f', "$dir/other", 'source' ], 'messages are left out');
	command_ok([ 'psql', '-Xq', @conn, '-v', 'ON_ERROR_STOP=1', '-d', $db, '-f', "$dir/other" ], 'restored');
	$node->safe_psql($db, q{SELECT narad.produce_batch('orders', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 20) i))});
	is(comes($db, 'orders', $_), '0:' . join(',', 0 .. 19), "$_ gets all that was produced since") foreach ('default', 'all', 'paused');

	# Not even where nothing was there when the group was made.
	$db = make_db('r_none');
	command_ok([ 'psql', '-Xq', @conn, '-v', 'ON_ERROR_STOP=1', '-d', $db, '-f', "$dir/other" ], 'restored');
	is(comes($db, 'orders', 'all'), '', 'nothing');
	$node->safe_psql($db, q{SELECT narad.produce_batch('orders', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 20) i))});
	is(comes($db, 'orders', 'all'), '0:' . join(',', 0 .. 19), 'then all');
}
# Half of them restored, then new ones.
{
	my $db = make_db('r_half');
	command_ok([ 'psql', '-Xq', @conn, '-v', 'ON_ERROR_STOP=1', '-d', $db, '-f', "$dir/other" ], 'restored without messages');
	my $rows = value('source', "SELECT string_agg(format('(0, %s, %L, %L)', msg_offset, produced_at, value), ',')"
		  . ' FROM orders WHERE msg_offset < 3');
	$node->safe_psql($db, "INSERT INTO orders (partition, msg_offset, produced_at, value) VALUES $rows;"
		  . " SELECT narad.produce_array('orders', '[100, 101, 102, 103]')");
	is(comes($db, 'orders', 'default'), '0:3,4,5,6', 'what was restored is settled, what is new is not');
}
# A group that is there already, and saved, stays where it is.
{
	my $db = make_db('r_early');
	$node->safe_psql($db, "CREATE EXTENSION narad; SELECT narad.create_topic('orders');"
		  . " SELECT narad.create_group('orders', 'all'); SELECT narad.create_topic('several')");
	restart_saving($db);
	command_ok([ 'pg_restore', @conn, '-e', '--data-only', '-t', 'orders', '-t', 'saved_frontiers', '-d', $db,
			"$dir/whole.custom" ], 'a topic is filled that has a group');
	is(comes($db, 'orders', 'all'), '0:0,1,2,3,4,5,8,9,10,11', 'which stays where it was');
	is(comes($db, 'orders', 'default'), '0:4,5,8,9,10,11', 'others are restored');
	is(value($db, "SELECT count(*) FROM narad.saved_frontiers WHERE consumer_group = 'all'"), 2, 'its row is there twice');
	restart_saving($db);
	is(value($db, "SELECT count(*) FROM narad.saved_frontiers WHERE topic = 'orders'::regclass"), 4, 'and once, when it was saved');
}

# ---- rows go with what they are of ---------------------------------------------

$node->safe_psql('source', q{
SELECT narad.create_topic('gone'); SELECT narad.create_topic('emptied'); SELECT narad.create_topic('grouped');
SELECT narad.produce(t, '1') FROM unnest('{gone, emptied, grouped}'::regclass[]) t;
SELECT narad.ack(receipt) FROM unnest('{gone, emptied, grouped}'::regclass[]) t, narad.consume(t);
SELECT narad.create_group('grouped', 'other');
});
restart_saving('source');
my $mine = "SELECT count(*) FROM narad.saved_frontiers WHERE topic::text ~ '^(gone|emptied|grouped|[0-9]+)'";
is(value('source', $mine), 4, 'saved');
$node->safe_psql('source', "BEGIN; DROP TABLE gone; TRUNCATE emptied; SELECT narad.purge_topic('grouped'); ROLLBACK");
is(value('source', $mine), 4, 'still, when drops are rolled back');
$node->safe_psql('source', "SELECT narad.drop_group('grouped', 'other')");
is(value('source', $mine), 3, 'a dropped group\'s row goes');
$node->safe_psql('source', 'DROP TABLE gone');
is(value('source', $mine), 2, 'and that of a topic dropped');
# What was saved of the log before is not even used where the group is gone.
$node->safe_psql('source', "TRUNCATE emptied; BEGIN; SELECT narad.drop_group('emptied', 'default'); ROLLBACK;"
	  . " SELECT narad.produce_array('emptied', '[1, 2]')");
is(comes('source', 'emptied', 'default'), '0:1,2', 'a topic truncated: all that came after is delivered');
$node->safe_psql('source', "SELECT narad.purge_topic('grouped')");
restart_saving('source');
is(value('source', "SELECT count(*) FROM narad.saved_frontiers s JOIN narad.topics t USING (topic)"
	  . " WHERE s.topic_id = t.topic_id AND topic::text IN ('emptied', 'grouped')"), 2, 'the next save is of the new logs');
# Two at once.
{
	my ($s1, $s2) = map { narad_session($node, 'source') } (1, 2);
	$s1->rows("BEGIN; SELECT narad.drop_group('grouped', 'default')");
	is($s2->try("SELECT narad.drop_group('grouped', 'default')"), '42704', 'a group that is being dropped is not there');
	restart_saving('source');
	$_->{dead} = 1 foreach ($s1, $s2);
	$_->quit foreach ($s1, $s2);
	unlike(saved('source'), qr/^grouped/m, 'a row whose transaction ended with the server goes with the next save');
}

# ---- at the interval, and with nobody to wait for ------------------------------

$node->append_conf('postgresql.conf', "narad.frontier_save_interval = 200ms\nsynchronous_standby_names = 'nobody'\n"
	  . 'synchronous_commit = local');
$node->reload;
$node->safe_psql('source', "SELECT narad.produce('grouped', '2'); SELECT narad.produce('grouped', '3');"
	  . " SELECT narad.ack(receipt) FROM narad.consume('grouped', 2)");
poll_until('the row is there', sub { saved('source') =~ /^grouped default f \{3\}$/m });
pass('a frontier is saved at the interval');
$node->append_conf('postgresql.conf', 'synchronous_commit = on');
$node->reload;
$node->safe_psql('source', "SET synchronous_commit = local; SELECT narad.produce('grouped', '4');"
	  . " SELECT narad.ack(receipt) FROM narad.consume('grouped', 1)");
poll_until('the row is there', sub { saved('source') =~ /^grouped default f \{4\}$/m });
pass('though a standby is missing that commits wait for');
$node->stop;
log_is_clean($node, 'log');
done_testing();
