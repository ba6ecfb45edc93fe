# Copyright (c) 2026, the Narad authors
#
# When there is no shared memory left at all, not even for a topic that nobody
# has used since the start: its use is error 53200 and nothing worse, what is in
# use goes on, retention too (I10), and so does freezing; and when topics are
# dropped the others can be used.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('gone',
	conf => [ "narad.memory_limit = '8MB'", 'autovacuum = off', 'fsync = off',
		"narad.frontier_write_interval = '20ms'" ]);
$node->start;
my $s = narad_session($node);
$s->rows('CREATE EXTENSION narad');
$s->rows(q{SELECT narad.create_topic('late', segment_size => '256kB')});
$s->rows(q{SELECT narad.produce('late', '1')});
$s->quit;
$node->restart;

# In use: one with leases; and one whose list of segments is full.
$s = narad_session($node);
$s->rows(q{SELECT narad.create_topic('leased')});
$s->rows(q{SELECT narad.produce_array('leased', '[1, 2, 3]')});
$s->rows(q{CREATE TABLE receipts AS SELECT receipt FROM narad.consume('leased', 3)});
$s->rows(q{SELECT narad.create_topic('old', segment_size => '256kB')});
while ($s->value(q{SELECT count(*) FROM narad.segments WHERE topic = 'old'::regclass AND state <> 'spare'}) < 7)
{
	$s->rows(q{INSERT INTO old (value) VALUES (to_jsonb(repeat('x', 4000)))});
}
is($s->value(q{SELECT count(*) FROM narad.segments WHERE topic = 'old'::regclass AND state = 'spare'}), 0,
	'the next segment is not there yet');

# Topics of many partitions, and then of fewer, until there is no room for one.
my ($n, $state) = (0, '00000');
foreach my $size (65536, 8192, 1024, 64, 1)
{
	foreach (1 .. 300)
	{
		$n++;
		$state = $s->try("SELECT narad.create_topic('t$n', partitions => $size, segment_size => '256kB')");
		$state = $s->try("SELECT narad.produce('t$n', '1', partition => 0)") if ($state // '') eq '00000';
		$state //= 'the connection is lost';
		last if $state ne '00000';
	}
	is($state, '53200', "no more topics of $size partitions") or BAIL_OUT('the server is gone');
}
cmp_ok($n, '>', 15, "$n topics took it all");

# The one that nobody has used yet.
foreach my $sql (q{SELECT narad.produce('late', '2')}, q{INSERT INTO late (value) VALUES ('2')},
	q{SELECT narad.consume('late')}, q{SELECT narad.create_group('late', 'g')})
{
	is($s->try($sql), '53200', "error: $sql");
}
is($s->try('SELECT count(*) FROM late'), '00000', 'it can be read');
is($s->{rows}[0][0], 1, '... with what is there');
is($s->try('VACUUM (FREEZE) late'), '00000', 'and vacuumed');
is($s->try('VACUUM (FREEZE) old'), '00000', 'so can the others');
is($s->try('SELECT count(*) FROM narad.topics'), '00000', 'the views can be read');

# What is in use.
is($s->try(q{SELECT narad.ack(array_agg(receipt)) FROM receipts}), '00000', 'acks work');
is($s->try(q{SELECT narad.produce('leased', '4')}), '00000', 'and producing');
is($s->try(q{SELECT narad.alter_topic('old', retention => '1 ms')}), '00000', 'a setting can be changed');
is($s->try(q{SELECT narad.apply_retention('old')}), '00000', 'retention works') or diag($s->{error});
ok(poll_until('the old messages are gone', sub {
	$s->value(q{SELECT earliest = end_offset FROM narad.partitions WHERE topic = 'old'::regclass}) eq 't' }),
	'... and drops all that is old');
is($s->try(q{SELECT narad.produce('old', '5')}), '00000', 'and its topic goes on');

# With some room again.
is($s->try('DROP TABLE t1, t2, t3, t4, t5, t6'), '00000', 'topics can be dropped');
is($s->value(q{SELECT msg_offset FROM narad.produce('late', '2')}), 1, 'then others can be used');
is($s->value(q{SELECT count(*) FROM narad.consume('late', 10)}), 2, '... with all that is there');
$s->quit;
$node->stop;
log_is_clean($node, 'the log is clean');
done_testing();
