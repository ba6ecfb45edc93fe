# Copyright (c) 2026, the Narad authors
#
# I7: on a standby, whose only list of segments is the directory, the last stable
# offset is never above a record that may still commit, though segments are
# opened while the directory is read, the first of them where that was read
# already.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

plan skip_all => 'needs stop points' unless $ENV{NARAD_TESTING};

my $node = narad_node('primary', streaming => 1, conf => [
	'autovacuum = off', 'wal_keep_size = 256MB', 'max_wal_size = 1GB', 'fsync = off' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad');
$node->safe_psql('postgres', slurp_file("$ENV{NARAD_INPUTS}/test/narad_test/narad_test.sql"));
$node->safe_psql('postgres', q{SELECT narad.create_topic('t', segment_size => '256kB')});
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

sub fill
{
	my ($n) = @_;
	$node->safe_psql('postgres',
		"INSERT INTO t (value) SELECT to_jsonb(rpad(i || '.', 900, 'x')) FROM generate_series(1, $n) i");
	return;
}

sub last_sequence
{
	return one_value($node, q{SELECT max(segment_no) FROM narad.segments WHERE topic = 't'::regclass});
}

# A page of the directory describes 100 slots.  Of those some are free again.
fill(110 * 256);
my $kept = one_value($node, q{SELECT bytes FROM narad.partitions WHERE topic = 't'::regclass}) - 12 * 262144;
$node->safe_psql('postgres', "SELECT narad.alter_topic('t', retention_bytes => $kept)");
ok(poll_until('the oldest segments are gone', sub {
	one_value($node, q{SELECT min(segment_no) FROM narad.segments WHERE topic = 't'::regclass}) > 8 }),
	'the oldest segments are gone');
$node->safe_psql('postgres', q{SELECT narad.alter_topic('t', reset => '{retention_bytes}')});
$node->wait_for_catchup($standby);

# The standby has read of the directory what describes these slots.
my $reader = narad_session($standby);
$reader->backend_pid;
$standby->safe_psql('postgres', q{SELECT narad_test.stop_arm('directory-page')});
$reader->send(q{SELECT last_stable FROM narad.offsets('t')});
$standby->safe_psql('postgres', q{SELECT narad_test.stop_wait('directory-page')});

# A segment is opened in one of them, with a record that is not committed yet;
# and then more than there are free.
my $before = last_sequence();
my $writer = narad_session($node);
fill(32) while last_sequence() == $before;
$writer->rows('BEGIN');
my $pending = $writer->value(q{SELECT msg_offset FROM narad.produce('t', '"pending"')});
fill(256) while last_sequence() < $before + 20;
$node->wait_for_catchup($standby);
$standby->safe_psql('postgres', q{SELECT narad_test.stop_release('directory-page')});
is($reader->finish, '00000', 'the standby answers');
cmp_ok($reader->{rows}[0][0], '<=', $pending, 'the record that may still commit is not below the last stable offset');
is($reader->value(q{SELECT last_stable FROM narad.offsets('t')}), $pending, 'nor is it when asked again');
$writer->rows('COMMIT');
$node->wait_for_catchup($standby);
is($reader->value(q{SELECT last_stable FROM narad.offsets('t')}),
	one_value($node, q{SELECT end_offset FROM narad.offsets('t')}), 'when it has committed all is stable');
$reader->quit;
$writer->quit;
$standby->stop;
$node->stop;
logs_are_clean('no damage', $node, $standby);
done_testing();
