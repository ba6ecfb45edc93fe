# Copyright (c) 2026, the Narad authors
#
# I1, I3, I7, I11: a record of 64 MB, over several segments: a crash, the end of
# its session, a cancel and a promotion in the middle of it; what a standby and
# readers see meanwhile; and damage to a part of it that lies in another
# segment than its beginning.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

plan skip_all => 'the library has no stop points' unless $ENV{NARAD_TESTING};

my $node = narad_node('large', streaming => 1, conf => [
	'autovacuum = off', 'shared_buffers = 32MB', 'max_wal_size = 2GB', 'wal_keep_size = 1GB',
	"narad.max_message_size = '256MB'", "narad.max_batch_size = '256MB'", "statement_timeout = '120s'" ]);
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
CREATE TABLE flushed (i int);
CREATE TABLE expected (msg_offset bigint, len int, hash text);
-- A megabyte that does not compress, so many times, less some bytes.
CREATE FUNCTION blob(seed text, mb int, less int DEFAULT 0) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$
	SELECT substr(decode(repeat(encode(string_agg(sha512((seed || i)::bytea), '' ORDER BY i), 'hex'), mb), 'hex'),
		1, mb * 1048576 - less)
	FROM generate_series(1, 16384) i $$;
SELECT narad.create_topic('big', segment_size => '32MB', value_type => 'bytea', visibility_timeout => '1 hour');
});
$node->safe_psql('postgres', slurp_file("$FindBin::RealBin/../narad_test/narad_test.sql"));
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

# Produces a blob and remembers it.
sub produce
{
	my ($seed, $mb, $less) = @_;
	$node->safe_psql('postgres', "WITH p AS (SELECT * FROM narad.produce_bytes('big', blob('$seed', $mb, $less)))"
		  . " INSERT INTO expected SELECT msg_offset, $mb * 1048576 - $less, md5(blob('$seed', $mb, $less)) FROM p");
	return;
}

# What is there is what was committed, by every way of reading.
sub is_whole
{
	my ($where, $name) = @_;
	my $expected = one_value($where, 'SELECT count(*) FROM expected') . '|t|' . one_value($where, 'SELECT count(*) FROM expected');
	my $compare = 'count(*), bool_and((length(value), md5(value)) = (len, hash)), (SELECT count(*) FROM expected)'
	  . ' FROM expected e JOIN';
	is(one_value($where, "SELECT $compare big USING (msg_offset)"), $expected, "$name: scan");
	is(one_value($where, "SELECT $compare narad.fetch_bytes('big', 0, 0, max_bytes => 1000000000) USING (msg_offset)"),
		$expected, "$name: fetch");
	is(one_value($where, 'SELECT count(*) FROM big'), one_value($where, 'SELECT count(*) FROM expected'), "$name: no more");
	is(one_value($where, "SELECT count(*) FROM narad.verify('big')"), '0', "$name: verify");
	return;
}

sub hold
{
	my ($point, $s, $sql) = @_;
	$s->backend_pid;
	$node->safe_psql('postgres', "SELECT narad_test.stop_arm('$point')");
	$s->send($sql);
	$node->safe_psql('postgres', "SELECT narad_test.stop_wait('$point')");
	return;
}

sub release
{
	my ($point) = @_;
	$node->safe_psql('postgres', "SELECT narad_test.stop_release('$point')");
	return;
}

# All that was done so far is on disk, and at the standby.
sub to_disk
{
	$node->safe_psql('postgres', 'INSERT INTO flushed VALUES (1); CHECKPOINT');
	return;
}

# From here on the open segment is one of 32 MB, part of it used: the next record
# goes over two others.
produce('first', 40, 5);
produce('small', 1, 1048000);
is_whole($node, 'at first');

# ------------------------------------------------------- in the middle: a crash

my $s = narad_session($node);
my $other = narad_session($node);
my $offset = one_value($node, "SELECT end_offset FROM narad.offsets('big')");
hold('append-large-segment', $s, "SELECT narad.produce_bytes('big', blob('lost', 64))");
$other->backend_pid;
$other->send("SELECT narad.produce_bytes('big', 'waits')");
to_disk();
$node->wait_for_catchup('standby');
cmp_ok(one_value($node, "SELECT count(*) FROM narad.segments WHERE topic = 'big'::regclass AND first_offset = $offset + 1"),
	'>=', 1, 'a segment that continues the record');
is_whole($standby, 'the standby while a record is half written');
is(one_value($standby, "SELECT last_stable FROM narad.offsets('big')"), $offset, 'where the standby may read to');
ok(!$other->answered, 'others wait for the record');
$node->stop('immediate');
$node->start;
$_->quit foreach ($s, $other);
is_whole($node, 'after a crash');
produce('after crash', 20, 1);
is(one_value($node, 'SELECT max(msg_offset) FROM big'), $offset + 1, 'its offset is used up');
is_whole($node, 'after a crash and a record');
$node->wait_for_catchup('standby');
is_whole($standby, 'the standby');
is(one_value($node, "SELECT count(*), bool_and(md5(value) = hash) FROM narad.consume_bytes('big', 100) JOIN expected USING (msg_offset)"),
	one_value($node, 'SELECT count(*) FROM expected') . '|t', 'consume');

# ------------------------------------------- the same: the session's end, a cancel

foreach my $end ('terminate', 'cancel', 'rollback to savepoint')
{
	$s = narad_session($node);
	$other = narad_session($node);
	$s->rows('BEGIN');
	$s->rows('SAVEPOINT a');
	hold($end eq 'cancel' ? 'append-large-segment' : 'append-large-part', $s,
		"SELECT narad.produce_bytes('big', blob('$end', 64))");
	$other->backend_pid;
	$other->send("WITH p AS (SELECT * FROM narad.produce_bytes('big', 'waits'))"
		  . " INSERT INTO expected SELECT msg_offset, 5, md5('waits') FROM p");
	$node->safe_psql('postgres', ($end eq 'terminate' ? 'SELECT pg_terminate_backend(' : 'SELECT pg_cancel_backend(')
		  . $s->backend_pid . ')');
	my $state = $s->finish;
	is($state, $end eq 'terminate' ? undef : '57014', "$end in the middle of a record");
	release($_) foreach ('append-large-part', 'append-large-segment');
	$s->rows('ROLLBACK TO a') if $end eq 'rollback to savepoint';
	is($other->finish, '00000', "$end: others go on");
	$s->rows('COMMIT') if $end eq 'rollback to savepoint';
	is_whole($node, $end);
	$_->quit foreach ($s, $other);
}
is(one_value($node, "SELECT count(*), bool_and(value = 'waits') FROM narad.consume_bytes('big', 100)"), '3|t',
	'consume: what came meanwhile');

# ------------------------------------------------- COPY, and a committed rollback

$node->safe_psql('postgres', q{CREATE TABLE again (LIKE big) USING narad});
my $file = $node->basedir . '/big.copy';
$node->safe_psql('postgres', "COPY big TO '$file' (FORMAT binary); COPY again FROM '$file' (FORMAT binary)");
is(one_value($node, 'SELECT count(*) FROM (SELECT * FROM big EXCEPT SELECT * FROM again) x'), '0', 'COPY out and in gives the same');
unlink($file);
$node->safe_psql('postgres', "DROP TABLE again; BEGIN; SELECT narad.produce_bytes('big', blob('undone', 64)); ROLLBACK");
is_whole($node, 'after a whole record was rolled back');

# --------------------------------------------- in the middle: the primary is lost

produce('kept', 64, 3);
$s = narad_session($node);
hold('append-large-segment', $s, "SELECT narad.produce_bytes('big', blob('gone', 64))");
to_disk();
$node->wait_for_catchup('standby');
$node->stop('immediate');
$s->quit;
$standby->promote;
$node = $standby;
is_whole($node, 'promoted');
produce('promoted', 64, 7);
produce('promoted, small', 1, 1048576 - 9);
is_whole($node, 'promoted, and used');
$node->stop('immediate');
$node->start;
is_whole($node, 'promoted, used, and crashed');

# ------------------------------------------------------------------- damage

# The 48th megabyte of a record of 64 is in another segment than its first.
sub damage
{
	my ($code) = @_;
	my $path = $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('big')");
	my ($block, $n) = (0, 0);

	$node->stop;
	open(my $fh, '+<:raw', $path) or die $!;
	while (sysread($fh, my $page, 8192) == 8192)
	{
		# special space: cont_offset and cont_pos
		my ($cont_offset, $cont_pos) = unpack('QL', substr($page, 8192 - 16, 12));
		if (unpack('S', substr($page, 8192 - 56 + 8, 2)) == 0x4e03 && $cont_offset == $_[1]
			&& int($cont_pos / 8192) == 48 * 128)
		{
			$code->($page);
			sysseek($fh, $block * 8192, 0);
			syswrite($fh, $page);
			$n++;
		}
		sysseek($fh, ++$block * 8192, 0);
	}
	close($fh);
	$node->start;
	return $n;
}

foreach my $what (['zeros', sub { $_[0] = "\0" x 8192 }], ['bits', sub { substr($_[0], 1000, 8) ^= "\xff" x 8 }])
{
	my ($name, $code) = @$what;
	my $lost = one_value($node, "SELECT msg_offset FROM expected WHERE hash = md5(blob('"
		  . ($name eq 'zeros' ? "kept', 64, 3" : "promoted', 64, 7") . "))");
	is(damage($code, $lost), 1, "$name: a part of a record is damaged");
	my $t = narad_session($node);
	is($t->try('SELECT sum(length(value)) FROM big'), 'XX001', "$name: a scan raises an error");
	is($t->try("SELECT length(value) FROM big WHERE msg_offset = $lost"), 'XX001', "$name: also of the record alone");
	$t->quit;
	isnt(one_value($node, "SELECT string_agg(finding, ',') FROM narad.verify('big') WHERE msg_offset = $lost"), '',
		"$name: verify names the record");
	$node->safe_psql('postgres', "DELETE FROM expected WHERE msg_offset = $lost");
	$node->safe_psql('postgres', "SELECT narad.create_group('big', '$name')");
	is(one_value($node, "SELECT count(*), bool_and((length(value), md5(value)) = (len, hash)) FROM expected"
		  . " JOIN narad.consume_bytes('big', 100, consumer_group => '$name') USING (msg_offset)"),
		one_value($node, 'SELECT count(*) FROM expected') . '|t', "$name: consumers get all others");
	cmp_ok(one_value($node, "SELECT corrupt_records FROM narad.partitions WHERE topic = 'big'::regclass"), '>=', 1,
		"$name: it is counted");
}

$node->stop;
done_testing();
