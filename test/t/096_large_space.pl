# Copyright (c) 2026, the Narad authors
#
# I1, I10: large records where room is short.  A server with few buffers takes
# them; a disk that is full, or fails, just when room is reserved costs an error,
# 53100 or 58030, and no more; one that cannot reserve any is written to; and a
# segment goes on in the second file of its table.
#
# The disk is test/fail_io/fail_io.c, preloaded into the server.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradDisk;
use NaradTest;

my $node = narad_node('room', conf => [
	'autovacuum = off', 'shared_buffers = 32MB', 'max_wal_size = 2GB', "wal_consistency_checking = 'narad'",
	"narad.max_message_size = '64MB'" ]);
start_on_disk($node);
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
CREATE TABLE expected (topic text, part int, msg_offset bigint, len int, hash text);
-- Bytes that do not compress.
CREATE FUNCTION blob(seed text, kb int) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$
	SELECT string_agg(sha512((seed || i)::bytea), '' ORDER BY i) FROM generate_series(1, kb * 16) i $$;
});

# The statement that produces and remembers what.
sub produce_sql
{
	my ($t, $part, $seed, $kb) = @_;
	return "WITH p AS (SELECT * FROM narad.produce_bytes('$t', blob('$seed', $kb), partition => $part))"
	  . " INSERT INTO expected SELECT '$t', $part, msg_offset, $kb * 1024, md5(blob('$seed', $kb)) FROM p";
}

sub try { return (try_once($node, @_))[0]; }

# What is there is what was committed.
sub is_whole
{
	my ($t, $name) = @_;
	my $n = one_value($node, "SELECT count(*) FROM expected WHERE topic = '$t'");
	is(one_value($node, "SELECT count(*), (SELECT count(*) FROM $t),"
		  . ' bool_and((length(t.value), md5(t.value)) = (len, hash))'
		  . " FROM expected e JOIN $t t ON (t.partition, t.msg_offset) = (part, e.msg_offset) WHERE topic = '$t'"),
		"$n|$n|t", "$name: all $n records, and whole");
	is(one_value($node, "SELECT string_agg(finding, ',') FROM narad.verify('$t')"), '', "$name: verify");
	return;
}

# ------------------------------------------------------------ reserving room

foreach my $case ([ 28, '53100', 'disk_full' ], [ 5, '58030', 'disk_broken' ], [ 95, '00000', 'disk_unable' ])
{
	my ($errno, $state, $t) = @$case;
	$node->safe_psql('postgres', "SELECT narad.create_topic('$t', segment_size => '1MB', value_type => 'bytea')");
	$node->safe_psql('postgres', produce_sql($t, 0, 'first', 100));
	my $size = one_value($node, "SELECT pg_relation_size('$t')");
	break_disk($node, $errno, 'reserve', $t);
	is(try(produce_sql($t, 0, "no $_", 2000)), $state, "$t: room for a large record") foreach (1 .. 5);
	is(try("SELECT count(*) FROM $t"), '00000', "$t: readers go on");
	mend_disk();
	is_whole($t, "$t, meanwhile");
	cmp_ok(one_value($node, "SELECT pg_relation_size('$t')"), '<', $size + 3 * 1048576, "$t: trying takes no room")
	  unless $state eq '00000';
	is(try(produce_sql($t, 0, "yes $_", 2000)), '00000', "$t: afterwards") foreach (1 .. 2);
	is_whole($t, "$t, afterwards");

	# Its places are no holes of the file, however they came there; the rest of
	# the first slot may be one.
	my @stat = stat($node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('$t')"));
	cmp_ok($stat[12] * 512, '>=', $stat[7] - 1048576, "$t: its file has no holes");
}

# ---------------------------------------------------------- the second file

# One slot for each partition; the last one's lies in both.
$node->safe_psql('postgres', "SELECT narad.create_topic('wide', partitions => 64, segment_size => '16MB', value_type => 'bytea')");
$node->safe_psql('postgres', produce_sql('wide', $_, "wide $_", 600)) foreach (0 .. 63);
my $second = $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('wide')") . '.1';
ok(!-e $second, 'one file is enough');
$node->safe_psql('postgres', produce_sql('wide', 63, "more $_", 4000)) foreach (1 .. 6);
ok(-e $second, 'two files');
is_whole('wide', 'in two files');

# ------------------------------------------------------------- few buffers

$node->stop('immediate');
$node->append_conf('postgresql.conf', 'shared_buffers = 512kB');
$node->start;
is_whole($_, "$_ after a crash") foreach qw(disk_full disk_broken disk_unable wide);
$node->safe_psql('postgres', "SELECT narad.create_topic('few', partitions => 2, value_type => 'bytea')");
my @sessions = map { narad_session($node) } 0 .. 3;
foreach my $i (0 .. 3)
{
	$sessions[$i]->send(join('; ', map { produce_sql('few', $i % 2, "few $i $_", 3000) } 1 .. 3));
}
is(join(' ', map { $_->finish } @sessions), join(' ', ('00000') x 4), 'four sessions share 64 buffers');
$_->quit foreach @sessions;
is_whole('few', 'few buffers');
$node->stop('immediate');
$node->start;
is_whole('few', 'few buffers, after a crash');

$node->stop;
done_testing();
