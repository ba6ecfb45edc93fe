# Copyright (c) 2026, the Narad authors
#
# I1: with wal_level = minimal, what a transaction that makes a topic puts into
#     it survives a crash.
# I12: an unlogged topic is empty and usable after one, and what was known of
#     its old content (offsets, leases, acks) does not touch the new.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('minimal');
$node->start;
is(one_value($node, 'SHOW wal_level'), 'minimal', 'wal_level is minimal');
$node->safe_psql('postgres', 'CREATE EXTENSION narad');
create_helpers($node);

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

# ------------------------------------------------------------- unlogged topics

$node->safe_psql('postgres', q{
CREATE UNLOGGED TABLE u (LIKE narad.topic_template) USING narad;
CREATE UNLOGGED TABLE never (LIKE narad.topic_template) USING narad;
SELECT narad.create_group('u', 'mine');
SELECT count(*) FROM narad.produce_batch('u',
	ARRAY(SELECT nt.msg('m' || i, 1, 1000) FROM generate_series(0, 199) i));
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('u', 20);
BEGIN;
INSERT INTO u (value) VALUES (nt.msg('large', 1, 500000));
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('u', 20);
COMMIT;
BEGIN;
CREATE TEMP TABLE effect ();
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('u', 10);
COMMIT;
});
my $hash = one_value($node, "SELECT nt.scan_hash('u')");
$node->restart;
is(one_value($node, "SELECT nt.scan_hash('u')"), $hash, 'an unlogged topic survives a clean stop');
is(one_value($node, "SELECT min(msg_offset), count(*) FROM narad.consume('u', 1000)"), '50|151',
	'with its acks');
is(one_value($node, "SELECT count(*) FROM narad.consume('never', 10)"), '0', 'one never used is empty');

my $receipt = one_value($node, "SELECT receipt FROM narad.consume('u', 1, consumer_group => 'mine')");
crash();
my $s = narad_session($node);
is($s->value('SELECT count(*) FROM u'), 0, 'after a crash it is empty');
is($s->value("SELECT count(*) FROM narad.consume('u', 10)"), 0, 'for consumers');
is($s->value("SELECT sum(end_offset - earliest) FROM narad.offsets('u')"), 0, 'and for readers');
is($s->try("SELECT narad.ack('$receipt')"), 'NR410', 'a receipt of its old content is stale');
is($s->try("SELECT * FROM narad.consume('u', consumer_group => 'mine')"), '42704',
	'its groups went with it');
is($s->value(q{SELECT count(*) FROM narad.produce_batch('u',
	ARRAY(SELECT nt.msg('n' || i, 2, 1000) FROM generate_series(1, 100) i))}), 100, 'it takes messages');
is($s->value(q{SELECT count(*) FROM narad.consume('u', 1000) WHERE value->>'r' = '2'}), 100,
	'and gives them out');
is($s->value("SELECT count(*) FROM u"), 100, 'and shows them');
is($s->value("SELECT count(*) FROM narad.produce('never', '1')"), 1, 'so does one never used');
$s->quit;
crash();
is(one_value($node, 'SELECT count(*) FROM u'), '0', 'a second crash empties it again');
$node->safe_psql('postgres', q{
SELECT narad.purge_topic('u');
SELECT narad.produce('u', '1')});
crash();
is(one_value($node, 'SELECT count(*) FROM u'), '0', 'also after it was purged');
$node->safe_psql('postgres', "DROP TABLE u; DROP TABLE never");

# -------------------------------------------------- wal_level = minimal

# Small relations are logged at commit, large ones are flushed.
foreach my $threshold ('0', '100MB')
{
	my $name = "wal_skip_threshold $threshold";
	my $set = "SET wal_skip_threshold = '$threshold';";

	$node->safe_psql('postgres', qq{$set
BEGIN;
SELECT narad.create_topic('made', partitions => 3, segment_size => '256kB', max_in_flight => 10000);
SELECT count(*) FROM narad.produce_batch('made',
	ARRAY(SELECT nt.msg('m' || i, 1, i % 2000) FROM generate_series(1, 1000) i));
INSERT INTO made (value) SELECT nt.msg('large' || i, 1, 100000) FROM generate_series(1, 5) i;
SAVEPOINT a;
INSERT INTO made (value) SELECT nt.msg('a' || i, 1, 100) FROM generate_series(1, 100) i;
ROLLBACK TO a;
COPY made (value) FROM PROGRAM 'seq 1 500';
SELECT narad.create_group('made', 'g');
COMMIT;
-- In the transaction: emptied, filled again.
BEGIN;
SELECT narad.create_topic('emptied');
SELECT narad.produce('emptied', '"before"');
SELECT narad.purge_topic('emptied');
SELECT count(*) FROM narad.produce_batch('emptied',
	ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 500) i));
COMMIT;
-- A subtransaction's topic that is gone, and another one in its place.
BEGIN;
SAVEPOINT s;
SELECT narad.create_topic('again');
SELECT narad.produce('again', '"gone"');
ROLLBACK TO s;
SELECT narad.create_topic('again');
SELECT narad.produce('again', '"stays"');
COMMIT;
});
	my $all = topic_hash($node);
	crash();
	is(topic_hash($node), $all, "$name: everything committed is there after a crash");
	is(one_value($node, "SELECT count(*) FROM made WHERE NOT coalesce(nt.msg_ok(value), true)"), '0',
		"$name: and whole");
	is(one_value($node, "SELECT count(*) FROM narad.consume('made', 100000)"), '1505',
		"$name: it is all delivered");
	is(one_value($node, "SELECT count(*) FROM narad.consume('made', 1, consumer_group => 'g')"), '1',
		"$name: also to a group made in that transaction");
	is(one_value($node, "SELECT value FROM narad.consume('again', 10)"), '"stays"',
		"$name: a topic made twice holds what the second one got");

	# Work on top of it, logged as usual, and another crash.
	$node->safe_psql('postgres', qq{$set
INSERT INTO made (value) SELECT nt.msg('later' || i, 1, 3000) FROM generate_series(1, 200) i;
BEGIN;
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('emptied', 100);
INSERT INTO made (value) VALUES ('0');
COMMIT;
BEGIN;
SELECT narad.purge_topic('again');
SELECT count(*) FROM narad.produce_batch('again',
	ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 300) i));
COMMIT;
BEGIN;
SELECT narad.purge_topic('made');
SELECT narad.produce('made', '"rolled back"');
ROLLBACK;
});
	$all = topic_hash($node);
	crash();
	is(topic_hash($node), $all, "$name: and so is what came later");
	is(one_value($node, "SELECT min(value::int), count(*) FROM narad.consume('emptied', 1000)"), '101|400',
		"$name: an ack stands");
	is(one_value($node, "SELECT min(msg_offset) > 0, count(*) FROM narad.consume('again', 1000)"), 't|300',
		"$name: offsets went on where the purged content ended");
	$node->safe_psql('postgres', 'SELECT narad.drop_topic(t)'
		  . " FROM unnest(ARRAY['made', 'emptied', 'again']::regclass[]) t");

	# A transaction that is cut off leaves nothing.
	my $open = narad_session($node);
	$open->rows('BEGIN');
	$open->rows("SET LOCAL wal_skip_threshold = '$threshold'");
	$open->rows("SELECT narad.create_topic('open')");
	$open->rows("INSERT INTO open (value) SELECT to_jsonb(i) FROM generate_series(1, 5000) i");
	$node->safe_psql('postgres', 'CHECKPOINT');
	crash();
	$open->quit;
	is(one_value($node, "SELECT to_regclass('open') IS NULL"), 't', "$name: a cut-off topic is gone");
}

$node->stop;
log_is_clean($node, 'the log is clean');
done_testing();
