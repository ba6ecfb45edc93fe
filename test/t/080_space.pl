# Copyright (c) 2026, the Narad authors
#
# I10: a topic costs what it holds, on disk and so in base backups and on
#      standbys, however many partitions it has; a full disk costs nothing.
#      Pages that were prepared have their room, also in holes of the file,
#      which are filled without WAL.
# I11: a damaged last page loses its own records; its partition goes on, at
#      the next offset while the server runs, and after a restart at one that
#      cannot have been given, also behind a jump.  Pages of freed segments,
#      damaged or not, are nothing to the segment that is prepared over them.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('space', streaming => 1, conf => [
	"wal_consistency_checking = 'narad'", 'shared_buffers = 4MB',
	'autovacuum = off', 'max_wal_size = 1GB', 'wal_keep_size = 256MB']);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad; CREATE UNLOGGED TABLE filler (t text);');
create_helpers($node);
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

# ---------------------------------------------------------------- size

my $len = 950;
my %rows;

# Every record's value tells partition and number.
sub fill
{
	my ($topic, $partitions, $to, $order) = @_;
	my $from = $rows{$topic} || 0;
	$node->safe_psql('postgres', "INSERT INTO $topic (partition, value)"
		  . " SELECT p, to_jsonb(rpad(p || '.' || i || '.', $len, 'x'))"
		  . " FROM generate_series($from, $to - 1) i, generate_series(0, $partitions - 1) p " . ($order || ''));
	$rows{$topic} = $to;
	return;
}

# All there, each once and in its place, by offset and by order of a scan.
sub is_whole
{
	my ($where, $topic, $partitions, $name) = @_;
	my $n = $rows{$topic};
	is(one_value($where, qq{
SELECT count(*), count(DISTINCT (partition, msg_offset)), bool_and(value = to_jsonb(
	rpad(partition || '.' || msg_offset || '.', $len, 'x')))
FROM $topic}), join('|', $n * $partitions, $n * $partitions, 't'), $name);
	return;
}

sub size_is_small
{
	my ($topic, $partitions, $name) = @_;
	# A record's header, line pointer and padding, and what is left of a page
	# that holds eight.
	my $data = $rows{$topic} * $partitions * 8192 / 8;
	my $limit = 1.3 * $data + 65536 * (2 * $partitions) + 262144;
	my $size = one_value($node, "SELECT pg_relation_size('$topic')");
	cmp_ok($size, '<=', $limit, sprintf('%s: %.2f of its data', $name, $size / $data));
	return;
}

foreach my $partitions (1, 4, 64)
{
	my $topic = "size_$partitions";
	$node->safe_psql('postgres', "SELECT narad.create_topic('$topic', partitions => $partitions)");
	foreach my $kb (100, 1024, 5120)
	{
		# The largest is 80 MB: enough to go on to whole slots.
		my $name = "$partitions partitions of $kb kB";
		next if $partitions == 64 && $kb > 1024;
		fill($topic, $partitions, $kb);
		size_is_small($topic, $partitions, $name);
	}
	is_whole($node, $topic, $partitions, "$partitions partitions: contents");
}

# One partition fills the first slot before it begins the second.
fill('size_1', 1, 20 * 1024);
size_is_small('size_1', 1, '1 partition of 20 MB');
is_whole($node, 'size_1', 1, '1 partition of 20 MB: contents');

foreach my $size ('256kB', '512kB', '1MB', '1GB')
{
	my $topic = "segment_$size";
	$node->safe_psql('postgres',
		"SELECT narad.create_topic('$topic', partitions => 3, segment_size => '$size')");
	$node->safe_psql('postgres', "SELECT narad.create_group('$topic', 'g' || i) FROM generate_series(1, 5) i");
	fill($topic, 3, 700);
	cmp_ok(one_value($node, "SELECT pg_relation_size('$topic')"), '<=', 1.3 * 3 * 700 * 1024 +
		  ($size eq '1GB' ? 524288 : 4 * 1048576), "segments of $size: size");
}
# More units than one directory unit describes: 52 MB.
fill('segment_1GB', 3, 18 * 1024);
is_whole($node, 'segment_1GB', 3, 'many units in a slot: contents');

# Partitions that grow side by side leave holes to each other.
sub named_blocks
{
	my ($from) = @_;
	return one_value($node, q{
SELECT count(*) FROM pg_get_wal_records_info('} . $from . q{', pg_current_wal_flush_lsn())
WHERE record_type = 'FPI_FOR_HINT' AND block_ref LIKE '%/' || pg_relation_filenode('holes') || ' %'});
}
$node->safe_psql('postgres', q{
CREATE FUNCTION stop_arm(text) RETURNS void AS '$libdir/narad', 'narad_stop_arm' LANGUAGE C STRICT;
CREATE FUNCTION stop_release(text) RETURNS void AS '$libdir/narad', 'narad_stop_release' LANGUAGE C STRICT;
}) if $ENV{NARAD_TESTING};
$node->safe_psql('postgres', q{
CREATE EXTENSION pg_walinspect;
SELECT narad.create_topic('holes', partitions => 4, segment_size => '256kB')});
my $file = $node->data_dir . '/' . one_value($node, q{SELECT pg_relation_filepath('holes')});
my $lsn = one_value($node, 'SELECT pg_current_wal_insert_lsn()');
fill('holes', 4, 800, 'ORDER BY i, p');
cmp_ok((stat($file))[12] * 512, '>=', one_value($node, q{SELECT sum(bytes) FROM narad.segments
WHERE topic = 'holes'::regclass}), 'holes: what was prepared has its room');
is(named_blocks($lsn), 0, 'and nothing was named in the WAL for that');
SKIP:
{
	skip 'needs stop points', 2 unless $ENV{NARAD_TESTING};
	$lsn = one_value($node, 'SELECT pg_current_wal_insert_lsn()');
	$node->safe_psql('postgres', "SELECT stop_arm('no-reserve')");
	fill('holes', 4, 1600, 'ORDER BY i, p');
	$node->safe_psql('postgres', "SELECT stop_release('no-reserve')");
	cmp_ok((stat($file))[12] * 512, '>=', one_value($node, q{SELECT sum(bytes) FROM narad.segments
WHERE topic = 'holes'::regclass}), 'holes: the same where the file system cannot');
	cmp_ok(named_blocks($lsn), '>', 0, 'but there it has to be');
}
is_whole($node, 'holes', 4, 'holes: contents');

# After a crash, and on what a standby has, allocation goes on in free places.
$node->stop('immediate');
$node->start;
foreach my $topic (sort keys %rows)
{
	my $partitions = one_value($node, "SELECT count(*) FROM narad.partitions WHERE topic = '$topic'::regclass");
	fill($topic, $partitions, $rows{$topic} + 300);
	is_whole($node, $topic, $partitions, "$topic after a crash: contents");
}
$node->safe_psql('postgres', q{
SELECT narad.create_group('segment_1MB', 'h' || i) FROM generate_series(1, 200) i;
SELECT narad.purge_topic('segment_1MB');
});
delete $rows{segment_1MB};
cmp_ok(one_value($node, "SELECT pg_relation_size('segment_1MB')"), '<=', 30 * 8192,
	'a purged topic is small again');
is(one_value($node, q{
WITH i AS (INSERT INTO segment_1MB (partition, value) SELECT i % 3, to_jsonb(i) FROM generate_series(1, 9000) i
	RETURNING 1) SELECT count(*) FROM i}), 9000, 'and takes messages');
is(one_value($node, q{SELECT count(*), sum((value)::int) FROM segment_1MB}), '9000|' . 9000 * 9001 / 2,
	'which are all there');
is(one_value($node, q{SELECT count(DISTINCT consumer_group) FROM narad.groups WHERE topic = 'segment_1MB'::regclass}), 205,
	'as are its groups');

$node->wait_for_catchup($standby);
foreach my $topic (sort keys %rows)
{
	my $partitions = one_value($standby, "SELECT count(*) FROM narad.partitions WHERE topic = '$topic'::regclass");
	is_whole($standby, $topic, $partitions, "$topic on the standby: contents");
}
cmp_ok(one_value($standby, "SELECT pg_relation_size('size_1')"), '<=',
	one_value($node, "SELECT pg_relation_size('size_1')"), 'nor is it larger there');
$standby->stop;

# ---------------------------------------------------------------- a full disk

SKIP:
{
	skip 'needs stop points', 3 unless $ENV{NARAD_TESTING};
	$node->safe_psql('postgres', q{SELECT narad.create_topic('disk')});
	$node->safe_psql('postgres', "SELECT stop_arm('write-zeros')");
	my $failed = 0;
	foreach my $i (1 .. 20)
	{
		$failed++ if $node->psql('postgres', "SELECT narad.create_group('disk', 'g$i')");
		$failed++ if $node->psql('postgres', "SELECT narad.produce('disk', '1')");
	}
	is($failed, 40, 'nothing can be had on a full disk');
	$node->safe_psql('postgres', "SELECT stop_release('write-zeros')");
	$node->safe_psql('postgres', "SELECT narad.create_group('disk', 'g');"
		  . " SELECT narad.produce('disk', '1')");
	cmp_ok(one_value($node, "SELECT pg_relation_size('disk')"), '<=', 30 * 8192,
		'but no space is lost by trying');
	is(one_value($node, "SELECT count(*) FROM narad.consume('disk', 10, consumer_group => 'g')"), 1,
		'and all is well afterwards');
}

# ---------------------------------------------------------------- who is in the way

# A large append, or one that prepares pages, goes on, is cancelled, or its
# process ends: others that wait for it go on, and nothing is mixed up.
SKIP:
{
	skip 'needs stop points', 36 unless $ENV{NARAD_TESTING};
	$node->safe_psql('postgres', q{
CREATE FUNCTION stop_waiting(text) RETURNS integer AS '$libdir/narad', 'narad_stop_waiting' LANGUAGE C STRICT;
});
	foreach my $point ('append-large-part', 'append-prepare')
	{
		foreach my $end ('', 'pg_cancel_backend', 'pg_terminate_backend')
		{
			my $name = $point . ($end ? ", $end" : '');
			$node->safe_psql('postgres', "SELECT narad.create_topic('gate'); SELECT stop_arm('$point')");
			my ($victim, $small, $large) = map { narad_session($node) } 1 .. 3;
			my $pid = $victim->backend_pid;
			$_->backend_pid foreach ($small, $large);
			$victim->send(q{INSERT INTO gate (key, value) SELECT 'v', nt.msg('large', 1, 600000)});
			ok(poll_until("$point is reached", sub { one_value($node, "SELECT stop_waiting('$point')") > 0 }),
				"$name: a process is held");
			$small->send(q{INSERT INTO gate (key, value) SELECT 's', to_jsonb(i) FROM generate_series(1, 10) i});
			$large->send(q{INSERT INTO gate (key, value) SELECT 'l', nt.msg('l' || i, 1, 5000 * i) FROM generate_series(1, 4) i});
			ok(poll_until('both wait', sub {
					one_value($node, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension'
						AND pid IN (} . join(',', $small->backend_pid, $large->backend_pid) . ')') == 2 }),
				"$name: others wait");
			$node->safe_psql('postgres', "SELECT $end($pid)") if $end;
			$node->safe_psql('postgres', "SELECT stop_release('$point')");
			is($victim->finish, $end eq '' ? '00000' : $end =~ /cancel/ ? '57014' : undef, "$name: it ends");
			is(join(' ', $small->finish, $large->finish), '00000 00000', "$name: others go on");
			is(one_value($node, q{SELECT string_agg(key || ' ' || n, ', ' ORDER BY key) FROM
				(SELECT key, count(*) n FROM gate WHERE key = 's' OR nt.msg_ok(value) GROUP BY key) k}),
				'l 4, s 10' . ($end ? '' : ', v 1'), "$name: all is there, and whole");
			is(one_value($node, q{SELECT count(*) FROM narad.fetch('gate', 0, 0, 100)}), $end ? 14 : 15,
				"$name: by offset, too");
			$node->safe_psql('postgres', 'DROP TABLE gate');
		}
	}
}

# ---------------------------------------------------------------- damaged tails

sub last_block
{
	my ($topic) = @_;
	return one_value($node, "SELECT (max(ctid)::text::point)[0]::int FROM $topic");
}

# Overwrites part of a page on disk, checksum or all.
sub damage
{
	my ($path, $block, $from, $bytes) = @_;
	open(my $file, '+<:raw', $node->data_dir . "/$path") or die $!;
	seek($file, $block * 8192 + $from, 0) or die $!;
	syswrite($file, $bytes) or die $!;
	close($file);
	return;
}

# Writes the page out and has it thrown out of the buffer pool.
sub evict
{
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', q{
INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 7000);
TRUNCATE filler;}) foreach 1 .. 3;
	return;
}

foreach my $how ([ 'bad bytes', 4000, 'x' x 100 ], [ 'zeros', 0, "\0" x 8192 ])
{
	my ($what, $from, $bytes) = @$how;
	my $topic = $what eq 'zeros' ? 'tail_zeros' : 'tail_bytes';
	my $offset = -s $node->logfile;
	$node->safe_psql('postgres', "SELECT narad.create_topic('$topic')");
	$node->safe_psql('postgres', "INSERT INTO $topic (value) SELECT to_jsonb(rpad(i::text, $len, 'x'))"
		  . ' FROM generate_series(0, 99) i');
	my $block = last_block($topic);
	my $lost = one_value($node, "SELECT count(*) FROM $topic WHERE (ctid::text::point)[0] = $block");
	my $path = one_value($node, "SELECT pg_relation_filepath('$topic')");
	evict();
	damage($path, $block, $from, $bytes);
	is(one_value($node, "SELECT msg_offset FROM narad.produce('$topic', '\"after\"')"), 100,
		"$what in the last page: the next message has the next offset");
	is(one_value($node, "SELECT count(*) FROM narad.produce_batch('$topic', ARRAY(SELECT to_jsonb(i)"
			  . ' FROM generate_series(1, 500) i))'), 500, "$what: and so on");
	is(one_value($node, "SELECT count(*), count(DISTINCT msg_offset), max(msg_offset)"
			  . " FROM narad.consume('$topic', 1000)"),
		join('|', 601 - $lost, 601 - $lost, 600), "$what: no other messages are lost");
	like(slurp_file($node->logfile, $offset), qr/last page of partition 0 of topic "$topic", block $block, is damaged/,
		"$what: the log says so");
}

my $block;

# A partition whose first segment lies on pages of one that was freed, sound ones
# or damaged, has what it was given, and nothing else.
foreach my $what ('sound', 'damaged')
{
	my $t = "freed_$what";
	my $offset = -s $node->logfile;
	$node->safe_psql('postgres', qq{
SELECT narad.create_topic('$t', segment_size => '256kB');
INSERT INTO $t (value) SELECT to_jsonb(rpad(i::text, $len, 'x')) FROM generate_series(0, 499) i;
CREATE TABLE was_$t AS SELECT msg_offset, (ctid::text::point)[0]::int AS block FROM $t;
SELECT narad.alter_topic('$t', retention_bytes => 100000);
SELECT * FROM narad.apply_retention('$t');
SELECT narad.alter_topic('$t', partitions => 2, reset => '{retention_bytes}');
});
	my $file = one_value($node, "SELECT pg_relation_filepath('$t')");
	my @freed = split(/\n/, one_value($node, "SELECT DISTINCT block FROM was_$t"
		  . " WHERE msg_offset < (SELECT min(msg_offset) FROM $t) ORDER BY 1"));
	my $left = one_value($node, "SELECT count(*) FROM $t");
	$node->stop;
	damage($file, $_, 12, "\xff" x 4) foreach ($what eq 'sound' ? () : @freed);
	$node->start;
	is(one_value($node, "INSERT INTO $t (partition, value) VALUES (1, '0') RETURNING msg_offset"), 0,
		"freed pages, $what: a partition begins");
	$block = one_value($node, "SELECT (ctid::text::point)[0]::int FROM $t WHERE partition = 1");
	cmp_ok(scalar(grep { $_ >= $block && $_ < $block + 8 } @freed), '>=', 7, "freed pages, $what: over them");
	foreach my $g (1, 2)
	{
		# The pages of the second are read from disk, if at all.
		evict() if $g == 2;
		my ($state) = try_once($node, "SELECT narad.create_group('$t', 'g$g')");
		($state) = try_once($node, qq{
WITH m AS MATERIALIZED (SELECT receipt FROM narad.consume('$t', 10, partition => 1, consumer_group => 'g$g')),
	i AS (INSERT INTO was_$t SELECT FROM m)
SELECT narad.ack(array_agg(receipt)) FROM m}) if $state eq '00000';
		is($state, '00000', "freed pages, $what: a group takes others of them");
	}
	is((try_once($node, "SELECT narad.produce_once('$t', '0', 'p', 1, partition => 0)"))[0], '00000',
		"freed pages, $what: a producer, too");
	$left++;
	foreach my $n (1, 2)
	{
		$node->stop($n == 1 ? 'fast' : 'immediate');
		$node->start;
		is(one_value($node, "SELECT count(*) FROM narad.verify('$t')"), 0, "freed pages, $what: nothing is wrong, on pages alone");
		is(one_value($node, "INSERT INTO $t (partition, value) VALUES (1, '$n') RETURNING msg_offset"), $n,
			"freed pages, $what: at the next offset it goes on");
		is(one_value($node, "SELECT count(*), count(*) FILTER (WHERE partition = 1 AND value::int = msg_offset) FROM $t"),
			join('|', $left + $n + 1, $n + 1), "freed pages, $what: a scan has all");
		is(one_value($node, "SELECT string_agg(value::text, ' ') FROM narad.fetch('$t', 1, 0)"), join(' ', 0 .. $n),
			"freed pages, $what: a fetch, too");
		is(one_value($node, "SELECT count(*) FROM narad.verify('$t')"), 0, "freed pages, $what: nothing is wrong, in memory either");
	}
	unlike(slurp_file($node->logfile, $offset), qr/is damaged|are skipped/, "freed pages, $what: nor logged");
}

# A jump, a crash, and then the page with the jump on it is found damaged.
my $far = 1 << 50;
$node->safe_psql('postgres', q{
SELECT narad.create_topic('jump');
INSERT INTO jump (value) SELECT to_jsonb(rpad(i::text, 950, 'x')) FROM generate_series(0, 99) i;
INSERT INTO jump (partition, msg_offset, value) VALUES (0, } . $far . q{, '"far"');
SELECT count(*) FROM narad.produce_batch('jump', ARRAY['1', '2']::jsonb[]);
});
$block = last_block('jump');
my $path = one_value($node, "SELECT pg_relation_filepath('jump')");
$node->safe_psql('postgres', 'CHECKPOINT');
$node->stop('immediate');
damage($path, $block, 4000, 'x' x 100);
$node->start;
my $next = one_value($node, "SELECT msg_offset FROM narad.produce('jump', '\"after\"')");
cmp_ok($next, '>', $far + 2, 'the next offset is past what the damaged page can have held');
cmp_ok($next, '<=', $far + 2 * 65536, 'but not far past');

$node->stop;
done_testing();
