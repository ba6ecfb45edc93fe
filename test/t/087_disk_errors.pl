# Copyright (c) 2026, the Narad authors
#
# I10: a full disk, or one that fails, costs who wanted room an error, 53100 or
#      58030, and nothing else: others go on, nothing is half there, and when
#      there is room again work goes on where it was.
# I11: on a standby a damaged page loses what was on it, and nothing else; and
#      the topic can be used when that is promoted.
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

my $node = narad_node('disk', streaming => 1, conf => [
	'autovacuum = off', "wal_consistency_checking = 'narad'", 'shared_buffers = 8MB',
	'wal_keep_size = 256MB' ]);
start_on_disk($node);
$node->safe_psql('postgres', 'CREATE EXTENSION narad; CREATE TABLE effect (n int);');
create_helpers($node);

my %errno = (ENOSPC => [ 28, '53100' ], EIO => [ 5, '58030' ]);

sub try { return try_once($node, @_); }

sub fails
{
	my ($errno, $sql, $name) = @_;
	is((try($sql))[0], $errno{$errno}[1], "$errno: $name");
	return;
}

sub works
{
	my ($sql, $expected, $name) = @_;
	is(join('/', try($sql)), "00000/$expected", $name);
	return;
}

sub is_sound
{
	my ($t, $name) = @_;
	is(join("\n", try("SELECT * FROM narad.verify('$t')")), '00000', "$name: verify finds nothing");
	return;
}

# Does the library do what the rest relies on?
$node->safe_psql('postgres', 'CREATE TABLE plain (t text); INSERT INTO plain SELECT repeat(md5(i::text), 50) FROM generate_series(1, 100) i;');
break_disk($node, $errno{ENOSPC}[0], 'extend', 'plain');
fails('ENOSPC', q{INSERT INTO plain SELECT repeat(md5(i::text), 50) FROM generate_series(1, 5000) i}, 'a table cannot grow');
mend_disk();

foreach my $errno ('ENOSPC', 'EIO')
{
	my $t = lc("t_$errno");
	$node->safe_psql('postgres', "SELECT narad.create_topic('$t', partitions => 2, segment_size => '256kB');");
	$node->safe_psql('postgres', "SELECT narad.create_topic('other_$errno')");

	# From the first byte on: block 0, the directory, pages of segments.
	break_disk($node, $errno{$errno}[0], 'extend', $t);
	fails($errno, "SELECT * FROM narad.produce('$t', '1', partition => 0)", 'a first message');
	fails($errno, "SELECT * FROM narad.consume('$t')", 'a first consume');
	works("SELECT count(*) FROM $t", 0, "$errno: nothing is there");
	works("SELECT count(*) FROM narad.produce('other_$errno', '1')", 1, "$errno: another topic works");
	mend_disk();
	works("SELECT msg_offset FROM narad.produce('$t', '1', partition => 0)", 0, "$errno: with room it works");
	works("SELECT msg_offset FROM narad.consume('$t')", 0, "$errno: and is delivered");
	is_sound($t, "$errno, the first");

	# Pages that were prepared are used up; then it is over.
	break_disk($node, $errno{$errno}[0], 'extend', $t);
	my $s = narad_session($node);
	my ($nput, $state) = (1, '00000');
	while ($nput < 1000)
	{
		$state = $s->try("INSERT INTO $t (partition, value) VALUES (0, nt.msg('$nput', 1, 900))");
		last if $state ne '00000';
		$nput++;
	}
	is($state, $errno{$errno}[1], "$errno: producers meet it when pages are used up");
	cmp_ok($nput, '>', 8, "$errno: and not before ($nput messages)");
	is($s->try("INSERT INTO $t (partition, value) VALUES (0, nt.msg('$nput', 1, 900))"), $errno{$errno}[1], "$errno: each time");
	is($s->try("INSERT INTO $t (partition, value) SELECT 0, nt.msg('c' || i, 1, 900) FROM generate_series(1, 200) i"),
		$errno{$errno}[1], "$errno: in bulk, too");
	is($s->try("INSERT INTO $t (partition, value) SELECT 0, nt.msg('l', 1, 100000)"), $errno{$errno}[1], "$errno: a large one");
	$s->quit;
	works("SELECT count(*) FROM $t", $nput, "$errno: readers go on");
	works("SELECT count(*) FROM narad.fetch('$t', 0, 0, 10000)", $nput, "$errno: also by fetch");
	works("SELECT count(*) FROM narad.consume('$t', 5)", 5, "$errno: and consumers");
	is_sound($t, "$errno, in the middle");
	my $size = -s $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('$t')");
	mend_disk();
	works("INSERT INTO $t (partition, value) SELECT 0, nt.msg('$nput', 1, 900) RETURNING msg_offset >= $nput", 't', "$errno: with room it goes on");
	$node->safe_psql('postgres', "INSERT INTO $t (partition, value) SELECT i % 2, nt.msg('m' || i, 1, 900) FROM generate_series(1, 300) i");
	works("SELECT count(*) FROM $t", $nput + 301, "$errno: all there is");
	is_sound($t, "$errno, after it");
	cmp_ok(-s $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('$t')"), '<',
		$size + 2 * 1048576, "$errno: failed attempts took no room");

	# A group's first state page: the ack and what it is atomic with fail
	# together (I5).
	$node->safe_psql('postgres', "SELECT narad.create_group('$t', 'g' || i) FROM generate_series(1, 6) i");
	break_disk($node, $errno{$errno}[0], 'extend', $t);
	my $failed = 0;
	foreach my $i (1 .. 40)
	{
		my ($got) = try("SELECT narad.create_group('$t', 'more_$i', 'latest')");
		$failed = $i if $got eq $errno{$errno}[1] && !$failed;
	}
	cmp_ok($failed, '>', 0, "$errno: groups need room at some time");
	$s = narad_session($node);
	foreach my $g (1 .. 6)
	{
		my $before = one_value($node, 'SELECT count(*) FROM effect');
		my ($got) = try("BEGIN; INSERT INTO effect VALUES ($g);"
			  . " SELECT narad.ack(receipt) FROM narad.consume('$t', 1, consumer_group => 'g$g', partition => 0); COMMIT");
		my $after = one_value($node, 'SELECT count(*) FROM effect');
		is($after, $before + ($got eq '00000' ? 1 : 0), "$errno: an ack that fails takes its effect along ($got)");
		my (undef, $next) = try("SELECT msg_offset FROM narad.consume('$t', 1, consumer_group => 'g$g', partition => 0)");
		is($next, $got eq '00000' ? 1 : 0, "$errno: and the message comes again if it failed");
	}
	mend_disk();
	is_sound($t, "$errno, groups");
	works("SELECT msg_offset FROM narad.consume('$t', 1, consumer_group => 'g1', partition => 1)", 0, "$errno: groups go on");
	$s->quit;

	# What is in the way cannot be written out: an error at most, and once the
	# disk is mended a checkpoint has all.
	break_disk($node, $errno{$errno}[0], 'write', $t);
	foreach my $sql ("SELECT count(*) FROM $t", "INSERT INTO $t (partition, value) SELECT 1, nt.msg('w' || i, 1, 900) FROM generate_series(1, 1500) i",
		"SELECT count(*) FROM narad.consume('$t', 1000)")
	{
		like((try($sql))[0], qr/^(00000|$errno{$errno}[1])$/, "$errno: no write works: $sql");
	}
	mend_disk();
	is((try('CHECKPOINT'))[0], '00000', "$errno: a checkpoint works afterwards");
	is_sound($t, "$errno, writes");
	works("SELECT count(*) FROM narad.produce('$t', '1', partition => 1)", 1, "$errno: producers go on");
}

# A file system that cannot reserve room: pages are made by writing zeros, at the
# file's end and into its holes, which partitions that grow side by side leave to
# each other.  Either may find the disk full, or broken.
foreach my $errno ('ENOSPC', 'EIO')
{
	my $t = lc("unable_$errno");
	my @unable = (95, 'reserve', $t);
	my (%put, %error);
	$node->safe_psql('postgres', "SELECT narad.create_topic('$t', partitions => 4, segment_size => '256kB')");
	my $file = $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('$t')");
	my $has_room = sub {
		my ($name) = @_;
		cmp_ok((stat($file))[12] * 512, '>=', one_value($node, "SELECT sum(bytes) FROM narad.segments WHERE topic = '$t'::regclass"),
			"$name: what was prepared has its room");
	};
	break_disk($node, @unable);
	# Until each has a spare, of which the first half is prepared.
	$node->safe_psql('postgres', "INSERT INTO $t (partition, value) SELECT p, nt.msg(p || '.' || i, 1, 900)"
		  . " FROM generate_series(1, 350) i, generate_series(0, 3) p ORDER BY i, p");
	works("SELECT count(*) FROM narad.consume('$t', 7)", 7, "$errno: without reserving, it works");
	$has_room->("$errno, without reserving");
	break_disk($node, @unable, [ $errno{$errno}[0], 'room' ]);
	my $s = narad_session($node);
	foreach my $p (0 .. 3)
	{
		my $state;
		$put{$p} = 350;
		$put{$p}++ while $put{$p} < 1000 && ($state = $s->try("INSERT INTO $t (partition, value) VALUES ($p, nt.msg('$put{$p}', 1, 900))")) eq '00000';
		is($state, $errno{$errno}[1], "$errno: without reserving, partition $p meets it");
		$error{ $s->{error} =~ s/( \d+ in)? file.*//r }++;
		is($s->try("INSERT INTO $t (partition, value) SELECT $p, nt.msg('l', 1, 100000)"), $errno{$errno}[1],
			"$errno: a large one for partition $p, too");
		is($s->try("INSERT INTO $t (partition, value) VALUES ($p, nt.msg('$put{$p}', 1, 900))"), $errno{$errno}[1],
			"$errno: and again");
	}
	is(join(', ', sort keys %error), 'could not extend, could not write block', "$errno: at the end, and in a hole")
	  or diag(explain(\%error));
	my $n = $put{0} + $put{1} + $put{2} + $put{3};
	is($s->value("SELECT count(*) FROM $t"), $n, "$errno: without reserving, readers go on");
	is($s->value("SELECT count(*) FROM narad.consume('$t', 7)"), 7, "$errno: and consumers");
	is_sound($t, "$errno, without reserving");
	my $size = -s $file;
	break_disk($node, @unable);
	foreach my $p (0 .. 3)
	{
		is($s->value("INSERT INTO $t (partition, value) SELECT $p, nt.msg(i::text, 1, 900) FROM generate_series(1, 40) i RETURNING msg_offset >= $put{$p}"),
			't', "$errno: with room it goes on, in partition $p");
	}
	is($s->value("SELECT count(*) FROM $t"), $n + 160, "$errno: all there is");
	is($s->value("SELECT bool_and(nt.msg_ok(value)) FROM $t"), 't', "$errno: and whole");
	$s->quit;
	is_sound($t, "$errno, without reserving, after it");
	$has_room->("$errno, after it");
	cmp_ok(-s $file, '<', $size + 2 * 1048576, "$errno: failed attempts took no room");
	mend_disk();
}

# Retention makes room on a full disk: what is due goes, though sealing what is
# old takes a segment, too.
$node->safe_psql('postgres', "SELECT narad.create_topic('filled', segment_size => '256kB')");
my $filler = narad_session($node);
do
{
	$filler->rows("INSERT INTO filled (value) VALUES (nt.msg('f', 1, 900))");
} while ($filler->value(q{SELECT count(*) FILTER (WHERE state = 'sealed') < 9 OR count(*) FILTER (WHERE state = 'spare') > 0
	FROM narad.segments WHERE topic = 'filled'::regclass}) eq 't');
$filler->quit;
break_disk($node, $errno{ENOSPC}[0], 'extend', 'filled');
fails('ENOSPC', "INSERT INTO filled (value) SELECT nt.msg('g' || i, 1, 900) FROM generate_series(1, 1000) i", 'the disk is full');
$node->safe_psql('postgres', "SELECT narad.alter_topic('filled', retention => '1 ms')");
works("SELECT count(*) FROM narad.apply_retention('filled')", 1, 'retention works on a full disk');
ok(poll_until('it has dropped what is old', sub {
	one_value($node, "SELECT earliest = end_offset FROM narad.offsets('filled')") eq 't' }), 'and drops what is old');
$node->safe_psql('postgres', "SELECT narad.alter_topic('filled', retention => '1 day')");
is((try("INSERT INTO filled (value) SELECT nt.msg('h' || i, 1, 900) FROM generate_series(1, 100) i"))[0], '00000',
	'producers go on in the room that it made');
works('SELECT count(*) FROM filled', 100, 'with all that they put there');
mend_disk();

# Whatever it was, a crash finds the same.
my $hash = topic_hash($node);
$node->stop('immediate');
$node->start;
is(topic_hash($node), $hash, 'a crash changes nothing');
is_sound($_, "$_ after a crash") foreach qw(t_enospc t_eio unable_enospc unable_eio filled);

# ------------------------------------------------------- damage on a standby

$node->safe_psql('postgres', qq{
SELECT narad.create_topic('s_$_', partitions => 2, segment_size => '256kB');
INSERT INTO s_$_ (partition, value) SELECT i % 2, to_jsonb(rpad(i::text, 950, 'x')) FROM generate_series(0, 999) i;
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('s_$_', 100, partition => 0);
}) foreach qw(data zeros slots meta state sound);
my $standby = PostgreSQL::Test::Cluster->new('standby');
$node->safe_psql('postgres', 'CHECKPOINT');
$node->backup('base');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
my $block = one_value($node, q{SELECT (ctid::text::point)[0]::int FROM s_data WHERE partition = 0 AND msg_offset = 250});
$standby->stop;

# Changes the first page of a kind, or a block by its number.
sub damage
{
	my ($t, $which, $code) = @_;
	my $path = $standby->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('$t')");
	my ($at, $n) = (0, 0);
	open(my $fh, '+<:raw', $path) or die "$path: $!";
	while (sysread($fh, my $page, 8192) == 8192)
	{
		if ($which < 0x4000 ? $at == $which : unpack('S', substr($page, 8192 - 8, 2)) == $which)
		{
			$code->($page);
			sysseek($fh, $at * 8192, 0);
			syswrite($fh, $page);
			$n++;
		}
		sysseek($fh, ++$at * 8192, 0);
	}
	close($fh);
	cmp_ok($n, '>', 0, "$t is damaged on the standby");
	return;
}
my $flip = sub { substr($_[0], 4000, 8) ^= "\xff" x 8 };
damage('s_data', $block, $flip);
damage('s_zeros', $block, sub { $_[0] = "\0" x 8192 });
damage('s_slots', 1, $flip);
damage('s_meta', 0, $flip);
damage('s_state', 0x4e06, $flip);
$standby->start;

sub standby_try { return join('/', try_once($standby, @_)); }

foreach my $t (qw(s_data s_zeros))
{
	is(standby_try("SELECT count(*) FROM $t"), 'XX001', "$t on the standby: a scan is an error");
	is(standby_try("SELECT count(*) FROM narad.fetch('$t', 0, 0, 10000)"), '00000/492', "$t on the standby: fetch skips a page");
	is(standby_try("SELECT count(*) FROM narad.fetch('$t', 1, 0, 10000)"), '00000/500', "$t on the standby: and nothing else");
	like(standby_try("SELECT * FROM narad.verify('$t')"), qr/^00000\/error\|0\|248\|$block\|page/, "$t on the standby: verify names it");
}
foreach my $t (qw(s_slots s_meta))
{
	is(standby_try("SELECT count(*) FROM narad.fetch('$t', 0, 0)"), 'XX001', "$t on the standby: fetch is an error");
	like(standby_try("SELECT * FROM narad.verify('$t')"), qr/^00000\/error\|/, "$t on the standby: verify names it");
}
like(standby_try('SELECT count(*) FROM narad.partitions'), qr/^00000\//, 'the views can be read');
is(standby_try("SELECT count(*) FROM s_sound"), '00000/1000', 'another topic is whole');

# The primary goes on, and what it does comes here.
$node->safe_psql('postgres', qq{INSERT INTO s_$_ (partition, value) SELECT i % 2, '"later"' FROM generate_series(0, 9) i}) foreach qw(data sound);
$node->wait_for_catchup($standby);
is(standby_try("SELECT count(*) FROM narad.fetch('s_data', 0, 0, 10000)"), '00000/497', 'replay goes on');

$standby->promote;
is(standby_try("SELECT count(*) FROM narad.consume('s_data', 10000, partition => 0)"), '00000/397', 'promoted: consumers skip the page');
is(standby_try("SELECT count(*) FROM narad.produce('s_data', '1', partition => 0)"), '00000/1', 'promoted: producers go on');
is(standby_try("SELECT min(msg_offset) FROM narad.consume('s_state', 1, partition => 0)"), '00000/0', 'promoted: a group whose page is lost starts again');
is(standby_try("SELECT count(*) FROM narad.produce('s_slots', '1')"), 'XX001', 'promoted: without its directory a topic is refused');
is(standby_try("SELECT count(*) FROM narad.verify('s_sound')"), '00000/0', 'promoted: another topic is sound');
unlike(slurp_file($_->logfile), qr/TRAP:|PANIC:|was terminated by signal/, $_->name . ' stayed up') foreach ($node, $standby);

done_testing();
