# Copyright (c) 2026, the Narad authors
#
# I11: a damaged page, or record, loses what was on it and nothing else:
#      consumers skip it, those who slept when they were handed it, too (I8), it is
#      counted and logged, a scan is error XX001,
#      narad.verify names it, other topics and partitions go on.  Damage of what
#      a topic is found by is a clear error.
# I12: no damage makes a topic look like an empty one.
#
# And narad.verify finds nothing where all is well, whatever goes on meanwhile;
# offset_for_epoch, with more epochs than one.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('damage', streaming => 1, conf => [
	'autovacuum = off', 'shared_buffers = 8MB', 'wal_keep_size = 256MB']);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad');

my (%file, @topics);

# Two partitions of 500 messages, 8 to a page, and two groups that settled some.
sub make_topic
{
	my ($t) = @_;
	$node->safe_psql('postgres', qq{
SELECT narad.create_topic('$t', partitions => 2, segment_size => '256kB');
INSERT INTO $t (partition, value) SELECT i % 2, to_jsonb(rpad(i::text, 950, 'x')) FROM generate_series(0, 999) i;
SELECT narad.create_group('$t', 'other');
WITH m AS MATERIALIZED (SELECT receipt, msg_offset FROM narad.consume('$t', 200, partition => 0))
SELECT narad.ack(array_agg(receipt)) FROM m WHERE msg_offset < 100 OR msg_offset % 2 = 0;
WITH m AS MATERIALIZED (SELECT receipt FROM narad.consume('$t', 1000, partition => 1, consumer_group => 'other'))
SELECT narad.ack(array_agg(receipt)) FROM m;
});
	$file{$t} = $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('$t')");
	push @topics, $t;
	return;
}

# Lets code edit blocks of a stopped server's topic: given a number, that block;
# given a kind of page, all of that kind.  How many were edited.
sub edit
{
	my ($t, $which, $code) = @_;
	my ($block, $n) = (0, 0);
	open(my $fh, '+<:raw', $file{$t}) or die "$file{$t}: $!";
	while (sysread($fh, my $page, 8192) == 8192)
	{
		my $kind = unpack('S', substr($page, 8192 - 8, 2));
		$kind = 0x4e03 if unpack('S', substr($page, 8192 - 56 + 8, 2)) == 0x4e03;
		if ($which < 0x4000 ? $block == $which : $kind == $which)
		{
			my $old = $page;
			$code->($page, $block);
			sysseek($fh, $block * 8192, 0);
			syswrite($fh, $page);
			$n++ if $page ne $old;
		}
		sysseek($fh, ++$block * 8192, 0);
	}
	close($fh);
	return $n;
}

sub flip_bits { substr($_[0], 100, 8) ^= "\xff" x 8; return; }
sub zero { $_[0] = "\0" x 8192; return; }

sub try { return try_once($node, @_); }

sub findings { my (undef, @rows) = try("SELECT * FROM narad.verify('$_[0]') ORDER BY block, partition"); return @rows; }

# Everything about a topic that is only found by what is damaged: XX001.
sub is_refused
{
	my ($t, $name, @sql) = @_;
	@sql = ("SELECT count(*) FROM $t", "SELECT * FROM narad.consume('$t')",
		"SELECT * FROM narad.produce('$t', '1', partition => 0)",
		"SELECT * FROM narad.fetch('$t', 0, 0)", "SELECT * FROM narad.offset_for_time('$t', 0, now())")
	  unless @sql;
	foreach my $sql (@sql)
	{
		my ($state) = try($sql);
		is($state, 'XX001', "$name: $sql is an error");
	}
	return;
}

# ---- pages whose checksum is wrong, or that are lost ----------------------

my @data = ('bits', 'zeros', 'cut');
my %refused = (
	meta => [ 0, \&flip_bits, qr/^error\|\|\|0\|metapage fails its checksum/ ],
	meta_zeros => [ 0, \&zero, qr/^error\|\|\|0\|metapage: all zeros, but block 1 is not/ ],
	slots => [ 1, \&flip_bits, qr/^error\|\|\|1\|directory page fails its checksum/ ],
	slots_zeros => [ 1, \&zero, qr/^error\|\|\|1\|directory page is all zeros, but block \d+ behind it is in use/ ],
	units => [ 2, \&flip_bits, qr/^error\|\|\|2\|directory page fails its checksum/ ],
	units_zeros => [ 2, \&zero, qr/^error\|\|\|2\|directory page is all zeros/ ]);
my %groups = (
	groups => [ 0x4e04, \&flip_bits, qr/^error\|\|\|\d+\|page of the group directory fails its checksum/ ],
	groups_zeros => [ 0x4e04, \&zero, qr/^error\|\|\|\d+\|page of the group directory is all zeros/ ],
	map => [ 0x4e05, \&flip_bits, qr/^error\|\|\|\d+\|map of state pages fails its checksum/ ],
	map_zeros => [ 0x4e05, \&zero, qr/^error\|\|\|\d+\|map of state pages is all zeros/ ]);
my %starts = (
	bases => [ 0x4e07, \&flip_bits, qr/^error\|\|\|\d+\|page of start offsets fails its checksum/ ],
	bases_zeros => [ 0x4e07, \&zero, qr/^error\|\|\|\d+\|page of start offsets is all zeros/ ]);
foreach my $t (sort keys %starts)
{
	# Emptied, one of its partitions has nothing but that page to tell where it goes on.
	make_topic($t);
	$node->safe_psql('postgres', "TRUNCATE $t; INSERT INTO $t (partition, value) VALUES (1, '1')");
	$file{$t} = $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('$t')");
}
make_topic($_) foreach ('sound', @data, sort(keys(%refused), keys(%groups)), 'state', 'cut_open', 'zeros_open');
# Two pages to be damaged, with one that is not between them, and nothing but what
# was rolled back behind; all is settled.
$node->safe_psql('postgres', q{
SELECT narad.create_topic('asleep', segment_size => '256kB', visibility_timeout => '1 hour');
INSERT INTO asleep (value) SELECT to_jsonb(rpad(i::text, 950, 'x')) FROM generate_series(0, 31) i;
BEGIN;
INSERT INTO asleep (value) SELECT to_jsonb(rpad(i::text, 950, 'x')) FROM generate_series(0, 7) i;
ROLLBACK;
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('asleep', 100);
});
$file{asleep} = $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('asleep')");
push @topics, 'asleep';
my @asleep = split(/\n/, one_value($node, "SELECT (ctid::text::point)[0]::int FROM asleep WHERE msg_offset IN (8, 24) ORDER BY 1"));
is(one_value($node, "SELECT string_agg(msg_offset::text, ' ' ORDER BY msg_offset) FROM asleep"
	  . " WHERE (ctid::text::point)[0] IN (" . join(',', @asleep) . ')'), join(' ', 8 .. 15, 24 .. 31), 'two pages of eight');
is(join(',', map { findings($_) } @topics), '', 'nothing is wrong at first');

# Blocks with the message of offset 250, and those with the last ones.
my (%block, %lost);
foreach my $t (@data)
{
	$block{$t} = one_value($node, "SELECT (ctid::text::point)[0]::int FROM $t WHERE partition = 0 AND msg_offset = 250");
	$lost{$t} = one_value($node, "SELECT string_agg(msg_offset::text, ',' ORDER BY msg_offset) FROM $t"
		  . ($t eq 'cut' ? " WHERE partition = 0 AND (ctid::text::point)[0] >= $block{$t} AND msg_offset < 256"
			: " WHERE (ctid::text::point)[0] = $block{$t}"));
}
my $cut_at = one_value($node, 'SELECT max((ctid::text::point)[0]::int) FROM cut_open WHERE partition = 1');
my $last = one_value($node, 'SELECT max((ctid::text::point)[0]::int) FROM zeros_open WHERE partition = 1');
$node->stop;
is(edit('zeros_open', $last - 1, \&zero), 1, 'a page of an open segment is zeroed');
is(edit('bits', $block{bits}, sub { substr($_[0], 4000, 8) ^= "\xff" x 8 }), 1, 'a data page is damaged');
is(edit('zeros', $block{zeros}, \&zero), 1, 'a data page is zeroed');
truncate($file{cut}, $block{cut} * 8192) or die $!;
truncate($file{cut_open}, $cut_at * 8192) or die $!;
foreach my $t (sort(keys(%refused), keys(%groups), keys(%starts)))
{
	my ($which, $code) = @{ $refused{$t} || $groups{$t} || $starts{$t} };
	cmp_ok(edit($t, $which, $code), '>', 0, "$t: damaged");
}
is(edit('state', 0x4e06, \&flip_bits), 2, 'state pages are damaged');
is(edit('asleep', $_, sub { substr($_[0], 4000, 8) ^= "\xff" x 8 }), 1, 'and a page for those who sleep') foreach @asleep;
my $logged_from = -s $node->logfile;
$node->start;

is(join(',', findings('bits')), "error|0|248|$block{bits}|page fails its checksum or has a damaged header",
	'verify names a damaged data page');
is(join(',', findings('zeros')), "error|0|248|$block{zeros}|page is all zeros", 'and a zeroed one');
like(join(',', findings('cut')), qr/error\|0\|248\|$block{cut}\|pages of the segment lie past the end of the file/,
	'and where the file ends too early');
foreach my $t ('bits', 'zeros')
{
	my ($state) = try("SELECT count(*) FROM $t");
	is($state, 'XX001', "$t: a scan is an error");
	is((try("SELECT count(*) FROM $t TABLESAMPLE SYSTEM (100)"))[0], 'XX001', "$t: a sample, too");
	is((try("SELECT count(*) FROM $t WHERE ctid = '($block{$t},1)'"))[0], 'XX001', "$t: a row by its place, too");
	is((try("SELECT count(*) FROM narad.fetch('$t', 1, 0)"))[1], 500, "$t: the other partition is whole");
	my (undef, @got) = try("SELECT msg_offset FROM narad.consume('$t', 1000, partition => 0,"
		  . " consumer_group => 'other') ORDER BY 1");
	my %lost = map { $_ => 1 } split(/,/, $lost{$t});
	is(join(',', @got), join(',', grep { !$lost{$_} } 0 .. 499), "$t: consumers get all but what was on the page");
	is(scalar(() = slurp_file($node->logfile, $logged_from) =~
			/skipping damaged records of topic "$t", partition 0, offsets 248 to 255/g), 1, "$t: with one line in the log");
	cmp_ok(one_value($node, "SET client_min_messages = error; SELECT corrupt_records FROM narad.partitions"
			  . " WHERE topic = '$t'::regclass AND partition = 0"), '>=', 8, "$t: and counted");
	is(join(',', (try("SELECT msg_offset FROM narad.produce('$t', '1', partition => 0)"))[1]), 500,
		"$t: producers go on");
	is((try("SELECT narad.offset_for_time('$t', 0, '-infinity')"))[1], 0, "$t: an offset is found by time");
}
# Those who sleep are handed damaged records.
my @sleepers = map { narad_session($node) } (0, 1);
sub send_to_sleep
{
	$_->send("WITH m AS MATERIALIZED (SELECT * FROM narad.consume('asleep', wait => '60 s'))"
		  . ' SELECT msg_offset, deliveries FROM m, narad.try_ack(ARRAY[m.receipt])') foreach @sleepers;
	return ok(poll_until('two wait', sub { one_value($node, 'SELECT count(*) FROM narad.waiters') == 2 }),
		'asleep: two wait');
}

# What they got, whoever woke first.
sub awake
{
	$_->finish foreach @sleepers;
	return join(' ', sort map { join('.', @{ $_->{rows}[0] || ['nothing'] }) } @sleepers);
}

sub ndamaged
{
	my $n = one_value($node, "SET client_min_messages = error; SELECT corrupt_records FROM narad.partitions"
		  . " WHERE topic = 'asleep'::regclass");
	return $n . ' ' . scalar(() = slurp_file($node->logfile, $logged_from) =~ /skipping damaged records of topic "asleep"/g);
}

send_to_sleep();
$node->safe_psql('postgres', "SELECT narad.seek('asleep', 'default', 0, 8)");
is(awake(), '16.1 17.1', 'asleep: handed damaged records, they get what follows these');
is(ndamaged(), '8 1', 'asleep: which are counted, and logged once');
$node->safe_psql('postgres', "SELECT narad.ack(array_agg(receipt)) FROM narad.consume('asleep', 6)");
send_to_sleep();
$node->safe_psql('postgres', "SELECT narad.seek('asleep', 'default', 0, 24)");
# (Both may come to the page at once, and count it.)
ok(poll_until('they are skipped', sub { (split / /, ndamaged())[0] >= 16 }), 'asleep: where nothing follows, they are skipped');
ok(poll_until('both wait', sub { one_value($node, 'SELECT count(*) FROM narad.waiters') == 2 }),
	'asleep: and both sleep on');
$node->safe_psql('postgres', "SELECT narad.produce('asleep', '1') FROM generate_series(1, 2)");
is(awake(), '40.1 41.1', 'asleep: and are served with what comes');
is(one_value($node, "SELECT frontier, in_flight FROM narad.groups WHERE topic = 'asleep'::regclass"), '41|0',
	'asleep: and nothing is left open');
$_->quit foreach @sleepers;
is((try("SELECT count(*) FROM zeros_open"))[0], 'XX001', 'zeros_open: a scan is an error');
is((try("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;"
	  . " SELECT count(*) FROM zeros_open"))[0], 'XX001', 'zeros_open: a parallel one, too');
is((try("SELECT count(*) FROM zeros_open WHERE ctid = '($last,1)'"))[1], 1, 'zeros_open: the last page is there');
is((try("SELECT count(*) FROM cut"))[0], 'XX001', 'cut: a scan is an error');
is((try("SELECT count(*) FROM narad.consume('cut', 1000, partition => 0)"))[0], '00000', 'cut: consumers go on');
is((try("SELECT count(*) FROM narad.produce('cut', '1', partition => 0)"))[1], 1, 'cut: producers, too');

# Pages missing from an open segment are as after a power failure: only what was
# settled on them tells.
like(join(',', findings('cut_open')),
	qr/^error\|1\|500\|\d+\|state of group "other": offsets are settled that lie past the partition's end, 496$/,
	'verify names settled messages that are gone');

foreach my $t (sort keys %refused)
{
	my @found = findings($t);
	is(scalar(@found), 1, "$t: one finding") or diag(join("\n", @found));
	like($found[0], $refused{$t}[2], "$t: verify names it");
	is_refused($t, $t);
	@found = findings($t);
	like($found[0], $refused{$t}[2], "$t: and still does");
}
foreach my $t (sort keys %groups)
{
	my @found = findings($t);
	cmp_ok(scalar(@found), '>', 0, "$t: findings");
	is(scalar(grep { $_ !~ $groups{$t}[2] } @found), 0, "$t: verify names it") or diag(join("\n", @found));
	is_refused($t, $t, "SELECT * FROM narad.consume('$t')");
	is((try("SELECT count(*) FROM $t"))[1], 1000, "$t: messages are there");
	is((try("SELECT msg_offset FROM narad.produce('$t', '1', partition => 0)"))[1], 500, "$t: producers go on");
}
foreach my $t (sort keys %starts)
{
	my @found = findings($t);
	cmp_ok(scalar(@found), '>', 0, "$t: findings");
	is(scalar(grep { $_ !~ $starts{$t}[2] } @found), 0, "$t: verify names it") or diag(join("\n", @found));
	is_refused($t, $t, "SELECT * FROM narad.produce('$t', '1', partition => 0)", "SELECT * FROM narad.produce('$t', '1', partition => 1)",
		"SELECT * FROM narad.consume('$t')", "SELECT * FROM narad.offsets('$t')");
	is((try("SELECT count(*) FROM $t"))[1], 1, "$t: messages are there");
}
is(scalar(grep { /^error\|[01]\|\|\d+\|state of group "(default|other)": state page is damaged, or something else$/ }
		findings('state')), 2, 'verify names damaged state pages');
is((try("SELECT min(msg_offset) FROM narad.consume('state', 10, partition => 0)"))[1], 101,
	'the group starts where it was saved');
is(join(',', findings('sound')), '', 'another topic is as it was');
is((try("SELECT count(*), min(msg_offset) FROM narad.consume('sound', 1000, partition => 0)"))[1], '350|101',
	'its consumers, too');
unlike(slurp_file($node->logfile, $logged_from), qr/TRAP:|PANIC:|was terminated by signal/, 'the server stayed up');

# ---- pages whose checksum is right, and what they say is wrong -------------

# Entry number $i of a directory page begins at 24 + 80 * $i: state, class, ...
# The first sealed segment of partition 0 that is not the first.
sub edit_entry
{
	my ($code) = @_;
	return sub {
		foreach my $at (map { 24 + 80 * $_ } 0 .. 99)
		{
			my ($state, undef, undef, $partition, $sequence) = unpack('CCSLQ', substr($_[0], $at, 16));
			next if $state != 3 || $partition != 0 || $sequence != 1;
			$code->($at, $_[0]);
			last;
		}
	};
}

sub put
{
	my ($offset, $template, $value) = @_;
	return edit_entry(sub { substr($_[1], $_[0] + $offset, length(pack($template, 0))) = pack($template, $value) });
}

# A page that holds a message of partition 0, edited by its special space.
sub edit_data
{
	my ($code) = @_;
	my $done = 0;
	return sub {
		my ($topic, $kind, $version, $partition, $sequence, $base) = unpack('QSSLQQ', substr($_[0], 8192 - 56, 32));
		return if $done || $partition != 0 || $sequence != 1;
		$done = 1;
		$code->($_[0]);
	};
}

# The same, given the line pointers of its first two records: where, flags, length.
sub edit_items
{
	my ($code) = @_;
	return edit_data(sub {
		my @items = map { [ $_ & 0x7fff, $_ >> 15 & 3, $_ >> 17 ] } unpack('LL', substr($_[0], 24, 8));
		$code->(@items);
		substr($_[0], 24, 8) = pack('LL', map { $_->[0] | $_->[1] << 15 | $_->[2] << 17 } @items);
	});
}

my %wrong = (
	state_9 => [ 2, put(0, 'C', 9), qr/entry \d+ of directory page: state is not known/ ],
	class_3 => [ 2, put(1, 'C', 3), qr/belongs to the segment at block \d+, too|of class 3 does not fit there/ ],
	no_partition => [ 2, put(4, 'L', 77), qr/entry \d+ of directory page: partition does not exist/ ],
	sequence => [ 2, put(8, 'Q', 100), qr/segments 1 to 1 are missing|is missing|segments \d+ to \d+ are missing/ ],
	twice => [ 2, put(8, 'Q', 2), qr/segment 2 is at block \d+, too/ ],
	end => [ 2, put(24, 'Q', 127), qr/segment 2 begins at another offset than the one before ends, 127/ ],
	time => [ 2, put(40, 'q', 1), qr/times are in the wrong order|ends at an earlier time|after the last one of the segment/ ],
	prepared => [ 2, put(64, 'L', 99), qr/more pages are prepared than it has/ ],
	used => [ 2, put(68, 'L', 99), qr/more pages are used than it has/ ],
	epoch => [ 2, put(72, 'L', 9), qr/is of epoch 9, and the topic of 1/ ],
	flags => [ 2, put(2, 'S', 32), qr/flags are not known/ ],
	flags_alone => [ 2, put(2, 'S', 1), qr/flags need that of being frozen/ ],
	flags_both => [ 2, put(2, 'S', 7), qr/flags contradict each other/ ],
	marks => [ 0x4e03, edit_data(sub {
		my $at = unpack('L', substr($_[0], 24, 4)) & 0x7fff;
		substr($_[0], $at + 22, 2) |= pack('S', 0x30) }), qr/record is marked as dead, and as committed/ ],
	still_open => [ 2, put(0, 'C', 2), qr/segment 1 is open, but not the last/ ],
	freed => [ 2, edit_entry(sub { substr($_[1], $_[0], 80) = "\0" x 80 }), qr/segments 1 to 1 are missing/ ],
	base => [ 0x4e03, edit_data(sub { substr($_[0], 8192 - 56 + 24, 8) = pack('Q', 0) }),
		qr/page begins at an offset that was there before/ ],
	base_time => [ 0x4e03, edit_data(sub { substr($_[0], 8192 - 56 + 32, 8) = pack('q', 0) }),
		qr/page begins at a time before the last record's/ ],
	moved => [ 0x4e03, edit_data(sub { substr($_[0], 8192 - 56 + 16, 8) = pack('Q', 77) }),
		qr/page is not one of the segment/ ],
	cont => [ 0x4e03, edit_data(sub { substr($_[0], 8192 - 56 + 40, 8) = pack('Q', 1) }),
		qr/page does not continue the record of the page before/ ],
	body => [ 0x4e03, edit_data(sub { substr($_[0], 8192 - 56 - 300, 1) ^= "\xff" }), qr/record fails its checksum/ ],
	header => [ 0x4e03, edit_data(sub {
		my $at = unpack('L', substr($_[0], 24, 4)) & 0x7fff;
		substr($_[0], $at + 20, 2) = pack('S', 9999) }), qr/record header makes no sense|record fails its checksum/ ],
	delta => [ 0x4e03, edit_data(sub {
		my $at = unpack('L', substr($_[0], 28, 4)) & 0x7fff;
		substr($_[0], $at + 20 - 2, 2) = pack('S', 0) }), qr/offset is not above the one before/ ],
	item_past_end => [ 0x4e03, edit_items(sub { $_[0][0] = 8128 }), qr/page is no sound data page/ ],
	item_too_long => [ 0x4e03, edit_items(sub { $_[0][2] = 0x7fff }), qr/page is no sound data page/ ],
	item_too_short => [ 0x4e03, edit_items(sub { $_[1][2] = 8 }), qr/page is no sound data page/ ],
	item_unused => [ 0x4e03, edit_items(sub { $_[1][1] = 0 }), qr/page is no sound data page/ ],
	items_in_hole => [ 0x4e03, edit_data(sub { substr($_[0], 12, 2) = substr($_[0], 14, 2) }), qr/page is no sound data page/ ],
	items_overlap => [ 0x4e03, edit_items(sub { @{ $_[1] } = @{ $_[0] } }), qr/items of page overlap/ ],
	partitions => [ 0, sub { substr($_[0], 24 + 16, 4) = pack('L', 0) }, qr/metapage: the number of partitions is out of range/ ],
	version => [ 0, sub { substr($_[0], 24 + 4, 4) = pack('L', 7) }, qr/metapage: the format version is not known/ ],
	group_id => [ 0, sub { substr($_[0], 24 + 24, 4) = pack('L', 1) }, qr/a group has the id 2, and the next one to be given is 1/ ],
	group_ids => [ 0x4e04, sub { substr($_[0], 24 + 8 + 88, 4) = pack('L', 1) }, qr/two groups have the id 1/ ],
	group_state => [ 0x4e04, sub { substr($_[0], 24 + 8 + 4, 1) = pack('C', 7) }, qr/entry of group 1 makes no sense/ ],
	map_to_data => [ 0x4e05, sub { substr($_[0], 24 + 8, 4) = pack('L', 10) },
		qr/state page does not lie among the pages set aside for such/ ],
	group_count => [ 0x4e04, sub { substr($_[0], 24 + 4, 4) = pack('L', 60000) }, qr/page of the group directory has 60000 entries in/ ],
	map_twice => [ 0x4e05, sub { substr($_[0], 24 + 8, 8) = substr($_[0], 24 + 12, 4) x 2 if unpack('L', substr($_[0], 24 + 12, 4));
		substr($_[0], 24 + 12, 4) = substr($_[0], 24 + 8, 4) }, qr/state page is in use for something else, too/ ],
	frontier => [ 0x4e06, sub { substr($_[0], 24 + 16, 8) = pack('Q', 9999) }, qr/offsets are settled that lie past the partition's end, 500/ ],
	image => [ 0x4e06, sub { substr($_[0], 24 + 104 + 20, 1) ^= "\xff" if unpack('L', substr($_[0], 24 + 44, 4)) > 30 },
		qr/what is settled above the frontier is not complete, or fails its checksum/ ],
	other_group => [ 0x4e06, sub { substr($_[0], 24 + 4, 4) = pack('L', 50) }, qr/state page belongs to a newer group/ ]);

my %w_starts = (
	start_offsets => [ 0x4e07, sub { substr($_[0], 28, 4) = pack('L', 1) }, qr/page has \d+ bytes from partition 1 on, instead of/ ],
	start_circle => [ 0x4e07, sub { substr($_[0], 24, 4) = pack('L', $_[1]) }, qr/page has \d+ bytes from partition 0 on, instead of|in use for something else, too/ ]);
%wrong = (%wrong, %w_starts);
make_topic("w_$_") foreach sort keys %wrong;
foreach my $t (sort keys %w_starts)
{
	$node->safe_psql('postgres', "TRUNCATE w_$t; INSERT INTO w_$t (partition, value) VALUES (1, '1')");
	$file{"w_$t"} = $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('w_$t')");
}
$node->stop;
command_ok([ 'pg_checksums', '--disable', '-D', $node->data_dir ], 'checksums are switched off');
foreach my $t (sort keys %wrong)
{
	cmp_ok(edit("w_$t", $wrong{$t}[0], $wrong{$t}[1]), '>', 0, "$t: changed");
}
$logged_from = -s $node->logfile;
$node->start;
foreach my $t (sort keys %wrong)
{
	my @found = findings("w_$t");
	cmp_ok(scalar(grep { $_ =~ $wrong{$t}[2] } @found), '>', 0, "$t: verify names it") or diag(join("\n", @found));

	# Whatever comes of it, it is an answer.
	my @states = map { (try($_))[0] } ("SELECT count(*) FROM w_$t", "SELECT count(*) FROM narad.consume('w_$t', 1000)",
		"SELECT count(*) FROM narad.produce('w_$t', '1', partition => 1)", "SELECT narad.offset_for_time('w_$t', 0, now())");
	is(scalar(grep { !/^(00000|XX001|0A000)$/ } @states), 0, "$t: no use of it is worse than an error")
	  or diag("@states");
}
is_refused("w_$_", $_, "SELECT * FROM narad.produce('w_$_', '1', partition => 0)") foreach sort keys %w_starts;
is_refused('w_group_count', 'group_count', "SELECT narad.create_group('w_group_count', 'new')");
is((try("SELECT count(*) FROM narad.consume('w_body', 1000, partition => 0, consumer_group => 'other')"))[1], 499,
	'body: a damaged record loses itself');

# In small batches, which copy little of a page.
foreach my $t (grep { /^item/ } sort keys %wrong)
{
	is((try("SELECT count(*) FROM generate_series(1, 200),"
			  . " LATERAL narad.consume('w_$t', 3 + generate_series % 2, partition => 0, consumer_group => 'other')"))[1],
		$t eq 'items_overlap' ? 499 : 492, "$t: a damaged page loses what was on it");
}
is((try('SELECT count(*) FROM w_body'))[0], 'XX001', 'body: a scan is an error');
like(slurp_file($node->logfile, $logged_from), qr/The record at \(\d+,\d+\) is incomplete, or fails its checksum/,
	'body: the log says so');
is(join(',', findings('sound')), '', 'another topic is as it was');
unlike(slurp_file($node->logfile, $logged_from), qr/TRAP:|PANIC:|was terminated by signal/, 'the server stayed up');
$node->safe_psql('postgres', 'DROP TABLE ' . join(', ', grep { $_ ne 'sound' } @topics));

# ---- chains that run in a circle, on pages whose checksum is right -------------
#
# Whoever follows one comes to its end.  (Else the timeout ends it, or, where a lock
# keeps that off, the test's.)

sub answer { return try("SET statement_timeout = '30 s'; $_[0]"); }

# A transaction that also writes takes all, says how many, and settles those below
# an offset with i % 4 = a rest; 1500 of them are too many for one page.
sub settle_scattered
{
	my ($t, $rest, $end) = @_;
	return qq{
BEGIN;
INSERT INTO effects VALUES (1);
WITH m AS MATERIALIZED (SELECT receipt, msg_offset % 4 = $rest AND msg_offset < $end AS is_mine FROM narad.consume('$t', 10000)),
	done AS MATERIALIZED (SELECT count(*) AS n, narad.ack(array_agg(receipt) FILTER (WHERE is_mine)), narad.nack(array_agg(receipt) FILTER (WHERE NOT is_mine)) FROM m)
SELECT n FROM done};
}

# Makes a page that the topic's first state page names, at a place, its own
# successor.  The block.
sub make_circle
{
	my ($t, $place) = @_;
	my $block = 0;
	is(edit($t, 0x4e06, sub {
		$block ||= unpack('L', substr($_[0], 24 + $place, 4));
		substr($_[0], 24, 4) = pack('L', $block) if $_[1] == $block;
	}), 1, "$t: a page of the chain is changed");
	return $block;
}

@topics = ();
$node->safe_psql('postgres', q{
CREATE TABLE effects (i int);
SELECT narad.create_topic(t, visibility_timeout => '1 hour', max_in_flight => 100000, max_acked_ahead => 100000)
FROM unnest(ARRAY['c_group', 'c_groups', 'c_once', 'c_journal', 'c_spare', 'c_image']) t;
SELECT narad.create_topic('c_map', partitions => 2001, segment_size => '256kB');
SELECT narad.create_group('c_group', 'g1');
SELECT narad.create_group('c_groups', 'g' || i) FROM generate_series(1, 100) i;
SELECT count(*) FROM generate_series(1, 100) i, narad.produce_once('c_once', to_jsonb(i), 'p' || i, 1);
INSERT INTO c_map (partition, value) VALUES (0, '1'), (2000, '1');
INSERT INTO c_journal (value) SELECT to_jsonb(i) FROM generate_series(0, 5999) i;
INSERT INTO c_spare (value) SELECT to_jsonb(i) FROM generate_series(0, 5999) i;
INSERT INTO c_image (value) SELECT to_jsonb(i) FROM generate_series(0, 5999) i;
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('c_map', 1, partition => 0)});
# The second finds the page full: what has ended leaves it, and the others.
$node->safe_psql('postgres', settle_scattered('c_spare', 1, 6000) . '; COMMIT');
$node->safe_psql('postgres', settle_scattered('c_spare', 2, 40) . '; COMMIT');
# What was delivered before takes several pages, and each image the other chain.
foreach my $rest (1, 2)
{
	$node->safe_psql('postgres', settle_scattered('c_image', $rest, 40) . '; COMMIT');
	$node->restart;
}
foreach my $t ('c_group', 'c_groups', 'c_once', 'c_journal', 'c_spare', 'c_image', 'c_map')
{
	$file{$t} = $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('$t')");
	is(join(',', findings($t)), '', "$t: nothing is wrong at first");
}
# Acknowledgements stay on the journal's pages while the worker cannot lock the topic.
my ($acker, $locker) = map { narad_session($node) } (0, 1);
is($acker->try(settle_scattered('c_journal', 1, 6000)), '00000', 'c_journal: acknowledged');
$locker->send('BEGIN; LOCK TABLE c_journal');
ok(poll_until('the lock is waited for', sub { one_value($node,
	"SELECT count(*) FROM pg_locks WHERE relation = 'c_journal'::regclass AND NOT granted") == 1 }), 'c_journal: to be locked');
is($acker->try('COMMIT'), '00000', 'c_journal: committed');
$node->stop('immediate');
$_->quit foreach ($acker, $locker);
$node->start;
$node->stop;
my $to_itself = sub { substr($_[0], 24, 4) = pack('L', $_[1]); return; };
is(edit('c_group', 0x4e04, $to_itself), 1, 'c_group: the only page of groups is changed');
my ($first_groups, $second_groups);
is(edit('c_groups', 0x4e04, sub {
	$first_groups //= $_[1];
	$second_groups = $_[1];
	substr($_[0], 24, 4) = pack('L', $first_groups) if $_[1] != $first_groups;
}), 1, 'c_groups: the second page of groups leads to the first');
is(edit('c_map', 0x4e05, $to_itself), 1, 'c_map: the map is changed');
my $root;
cmp_ok(edit('c_once', 0x4e08, sub {
	$root //= $_[1];
	# One in two leads to the root.
	substr($_[0], 24, 4) = pack('L', $_[1] % 2 ? $root : $_[1]) if $_[1] != $root;
}), '>', 30, 'c_once: pages of producers are changed');
my $journal = make_circle('c_journal', 52);
my $spare = make_circle('c_spare', 80);
make_circle('c_image', $_) foreach (32, 36);
$node->start;

foreach my $t ('c_group', 'c_groups')
{
	my @found = findings($t);
	like($found[0], qr/^error\|\|\|$first_groups\|page of the group directory is in use for something else, too/,
		"$t: verify names it");
	is(scalar(@found), 1, "$t: and nothing else") or diag(join("\n", @found));
	foreach my $sql ("SELECT narad.create_group('$t', 'new')", "SELECT * FROM narad.consume('$t', consumer_group => 'none')",
		"SELECT narad.drop_group('$t', 'none')", "VACUUM $t")
	{
		my ($ret, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
		like($err, qr/XX001: groups of topic "$t" are damaged in block $first_groups/, "$t: $sql is an error");
	}
	is((answer("SELECT * FROM narad.produce('$t', '1')"))[0], '00000', "$t: producers go on");
	is((answer("SELECT count(*) FROM narad.consume('$t', consumer_group => 'g1')"))[1], 1, "$t: who finds his group goes on");
}
like((findings('c_map'))[0], qr/map of state pages is in use for something else, too/, 'c_map: verify names it');
is((answer("SELECT count(*) FROM narad.consume('c_map', 10, partition => 2000)"))[0], 'XX001', 'c_map: a partition behind it is an error');
is((answer("SELECT count(*) FROM narad.consume('c_map', 10, partition => 1999)"))[0], '00000', 'c_map: others go on');

my %states;
$states{ (answer("SELECT * FROM narad.produce_once('c_once', '0', 'q$_', 1)"))[0] }++ foreach (1 .. 40);
is(join(' ', grep { !/^(00000|XX001)$/ } keys %states), '', 'c_once: new producers get an answer');
cmp_ok($states{XX001} || 0, '>', 20, 'c_once: most find their chain damaged');
is((answer("SELECT count(*) FROM generate_series(1, 100) i, narad.produce_once('c_once', to_jsonb(i), 'p' || i, 2)"))[1], 100,
	'c_once: known ones go on');
cmp_ok(scalar(grep { /page of producers is in use for something else, too/ } findings('c_once')), '>', 30, 'c_once: verify names it');
my ($ret, $out, $err) = $node->psql('postgres', "SET statement_timeout = '30 s'; VACUUM c_once");
like($err, qr/^psql:.*WARNING:  producers of topic "c_once" are damaged in block \d+/, 'c_once: VACUUM warns');
unlike($err, qr/ERROR/, 'c_once: and goes on');

like((findings('c_journal'))[0], qr/acknowledgements runs in a circle/, 'c_journal: verify names it');
is((answer('VACUUM FREEZE c_journal'))[0], '00000', 'c_journal: VACUUM goes on');
# The head page is full: so it is written, and the journal gone through.
my ($state, $n) = answer(settle_scattered('c_journal', 2, 6000));
is($state, '00000', 'c_journal: consumers go on');
ok($n > 4500 && $n < 6000, 'c_journal: what was settled behind it is delivered again') or diag($n);
is((answer(settle_scattered('c_journal', 2, 6000) . '; COMMIT'))[0], '00000', 'c_journal: acknowledgements, too');

like((findings('c_spare'))[0], qr/unused pages runs in a circle/, 'c_spare: verify names it');
is((answer(settle_scattered('c_spare', 3, 6000) . '; COMMIT'))[0], '00000', 'c_spare: acknowledged');
$node->stop('immediate');
$node->start;
is((answer("SELECT count(*) FROM narad.consume('c_spare', 10000)"))[1], 6000 - 1500 - 10 - 1500,
	'c_spare: no page is taken twice, so what was settled stays so');

my @found = findings('c_image');
like($found[0], qr/what is settled above the frontier is not complete/, 'c_image: verify names the image');
is(scalar(grep { /default": image runs in a circle/ } @found), 1, 'c_image: and the circle');
is(scalar(grep { /default": unused image runs in a circle/ } @found), 1, 'c_image: and that of the pages for the next image');
is(scalar(@found), 3, 'c_image: and nothing else') or diag(join("\n", @found));
is((answer(settle_scattered('c_image', 3, 6000) . '; COMMIT'))[1], 6000, 'c_image: all is delivered again');
$node->restart;
like(join(',', findings('c_image')), qr/^[^,]*unused image runs in a circle$/, 'c_image: the next image is sound');
is((answer(settle_scattered('c_image', 2, 6000) . '; COMMIT'))[1], 4500, 'c_image: what was settled stays so');
$node->restart;
is(join(',', findings('c_image')), '', 'c_image: the one after it has pages of its own');
is((answer("SELECT count(*) FROM narad.consume('c_image', 10000)"))[1], 3000, 'c_image: what was settled stays so, again');
$node->safe_psql('postgres', 'DROP TABLE c_group, c_groups, c_map, c_once, c_journal, c_spare, c_image, effects');

# ---- producers of produce_once -----------------------------------------------

$node->safe_psql('postgres', q{
SELECT narad.create_topic('once');
SELECT count(*) FROM generate_series(1, 20) i, narad.produce_once('once', to_jsonb(i), 'p' || i, 1);
CHECKPOINT});
$file{once} = $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('once')");

# Lets code edit the n-th page of producers; the first is the root.
sub edit_producers
{
	my ($n, $code) = @_;
	$node->stop;
	is(edit('once', 0x4e08, sub { $code->($_[0]) if $n-- == 0; return }), 1, 'a page of producers is changed');
	$node->start;
	return;
}

# How many of the producers have which SQLSTATE when they send again.
sub producer_states
{
	my %n;
	$n{ (try("SELECT * FROM narad.produce_once('once', '0', 'p$_', 1)"))[0] }++ foreach (1 .. 20);
	return join(' ', map { "$_:$n{$_}" } sort keys %n);
}

# What else there is to a topic goes on.
sub is_usable
{
	my ($name) = @_;
	is((try("SELECT count(*) FROM narad.produce('once', '0')"))[0], '00000', "$name: producers without a number go on");
	is((try("SELECT count(narad.ack(receipt)) FROM narad.consume('once', 1)"))[1], 1, "$name: consumers, too");
	my ($ret, $out, $err) = $node->psql('postgres', 'VACUUM (FREEZE) once');
	is($ret, 0, "$name: and VACUUM");
	return $err;
}

is(producer_states(), '00000:20', 'producers: all are known');
edit_producers(1, \&zero);
my ($nlost) = producer_states() =~ /^00000:\d+ XX001:(\d+)$/;
cmp_ok($nlost, '>', 0, 'producers: those of a lost page cannot go on, the others can');
like(is_usable('a lost page'), qr/WARNING:  producers of topic "once" are damaged in block \d+/, 'producers: which warns');
is(scalar(grep { /page of producers/ } findings('once')), 1, 'producers: verify names it');
edit_producers(1, sub { substr($_[0], 40, 8) = pack('Q', 2); return });
is_usable('a transaction that is forgotten');
is(producer_states(), sprintf('00000:%d XX001:%d', 19 - $nlost, $nlost + 1),
	'producers: one whose last transaction is forgotten cannot go on, either');
edit_producers(0, \&zero);
is(producer_states(), 'XX001:20', 'producers: without the root none can');
is_usable('a lost root');
$node->safe_psql('postgres', "SELECT narad.purge_topic('once')");
is(producer_states(), '00000:20', 'producers: after a purge all can');
is(join(',', findings('once')), '', 'producers: and nothing is wrong');
$node->safe_psql('postgres', 'DROP TABLE once');

# ---- while others work, and on a standby -----------------------------------

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->safe_psql('postgres', q{
SELECT narad.create_topic('busy', partitions => 3, segment_size => '256kB', max_acked_ahead => 100000, max_in_flight => 100000);
CREATE PROCEDURE produce(n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		INSERT INTO busy (partition, value) SELECT j % 3, to_jsonb(repeat('x', j * 20)) FROM generate_series(1, 40) j;
		IF i % 10 = 0 THEN
			INSERT INTO busy (value) SELECT jsonb_agg(md5(j::text)) FROM generate_series(1, 1500) j;
		END IF;
		IF i % 3 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
	END LOOP;
END $$;
CREATE TABLE effect (n bigint);
CREATE PROCEDURE consume(n int) LANGUAGE plpgsql AS $$
DECLARE
	got text[];
BEGIN
	FOR i IN 1 .. n LOOP
		SELECT array_agg(receipt ORDER BY random()) INTO got FROM narad.consume('busy', 60);
		CONTINUE WHEN got IS NULL;
		PERFORM narad.ack(got[: cardinality(got) / 2]);
		PERFORM narad.nack(r, CASE WHEN i % 2 = 0 THEN interval '1 s' END) FROM unnest(got[cardinality(got) / 2 + 1 :]) r LIMIT 5;
		IF i % 2 = 0 THEN INSERT INTO effect VALUES (i); END IF;
		IF i % 7 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
	END LOOP;
END $$;
CREATE PROCEDURE groups(n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM narad.create_group('busy', 'g' || i % 5, 'latest');
		PERFORM narad.ack(array_agg(receipt)) FROM narad.consume('busy', 5, consumer_group => 'g' || i % 5)
			HAVING count(*) > 0;
		PERFORM narad.drop_group('busy', 'g' || i % 5);
		COMMIT;
	END LOOP;
END $$;
});
my @workers = map { narad_session($node) } (0 .. 3);
my @work = ('CALL produce(250)', 'CALL produce(250)', 'CALL consume(200)', 'CALL groups(60)');
$workers[$_]->send($work[$_]) foreach (0 .. 3);
my (@found, $looks);
do
{
	push @found, findings('busy');
	$standby->psql('postgres', "SELECT * FROM narad.verify('busy')", stdout => \my $there);
	push @found, "standby: $there" if defined $there && $there ne '';
	$looks++;
} until (!grep { !$_->answered } @workers);
is($_->finish, '00000', 'the work was done') or diag($_->{error}) foreach @workers;
$_->quit foreach @workers;
is(join("\n", @found), '', "nothing was found in $looks looks while others worked");
is(join("\n", findings('busy')), '', 'nor afterwards');
$node->wait_for_catchup($standby);
is(one_value($standby, "SELECT count(*) FROM narad.verify('busy')"), 0, 'nor on the standby');
is(one_value($standby, "SELECT narad.offset_for_time('busy', 1, 'infinity')"),
	one_value($node, "SELECT end_offset FROM narad.offsets('busy') WHERE partition = 1"), 'which finds offsets by time');
is(one_value($standby, "SELECT narad.offset_for_time('busy', 0, produced_at) FROM busy WHERE partition = 0 AND msg_offset = 500"),
	one_value($node, "SELECT narad.offset_for_time('busy', 0, produced_at) FROM busy WHERE partition = 0 AND msg_offset = 500"),
	'the same as the primary');

# After a crash, with whatever was half done.
$node->stop('immediate');
$standby->promote;
$node = $standby;
is(join("\n", findings('busy')), '', 'nothing is found after a promotion');

# ---- epochs ------------------------------------------------------------------

my $end = one_value($node, "SELECT end_offset FROM narad.offsets('busy') WHERE partition = 2");
is(one_value($node, "SELECT narad.offset_for_epoch('busy', 2, 1)"), $end, 'the first epoch ends at the end');
$node->safe_psql('postgres', q{INSERT INTO busy (partition, value) VALUES (2, '1')});
is(one_value($node, "SELECT narad.offset_for_epoch('busy', 2, e) FROM generate_series(0, 3) e"),
	join("\n", '', $end, ($end + 1) x 2), 'and where it ended, once there is a second');
is(one_value($node, "SELECT narad.offset_for_epoch('busy', 1, 2) = end_offset FROM narad.offsets('busy') WHERE partition = 1"),
	't', 'a partition without one of the epoch gives the end of the one before');
is(join("\n", findings('busy')), '', 'nothing is found in two epochs');
$node->stop;
done_testing();
