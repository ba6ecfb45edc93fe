# Copyright (c) 2026, the Narad authors
#
# When shared memory is used up by leases, one can still look, make topics and
# groups, produce, and settle; and when leases go, everything goes on.  Who cannot
# note keys is told so.  A damaged topic costs the views its own figures only.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('memory',
	conf => [ 'narad.memory_limit = 8MB', 'autovacuum = off', 'fsync = off' ]);
my @views = qw(topics partitions groups leases);

$node->start;
my $s = narad_session($node);
$s->rows(q{CREATE EXTENSION narad});
$s->rows(q{SELECT narad.create_topic('filled', partitions => 2, max_in_flight => 10000000,
	max_acked_ahead => 10000000, segment_size => '256kB')});
$s->rows(q{SELECT narad.create_topic('idle', partitions => 4)});
$s->rows(q{SELECT narad.produce_array('idle', '[0, 1, 2]')});
$s->rows(q{SELECT count(*) FROM narad.consume('idle', 2)});
$s->rows(q{INSERT INTO filled (value) SELECT to_jsonb(i) FROM generate_series(1, 300000) i});
$s->quit;

# Nothing of 'idle' is in memory, when that is filled.
$node->restart;
$s = narad_session($node);
$s->rows(q{CREATE TABLE receipts (receipt text)});

# More leases than are claimed at once, whose keys are not known.
$s->rows(q{SELECT narad.create_topic('keyed', visibility_timeout => '1 hour')});
$s->rows(q{INSERT INTO keyed (key, value) SELECT i, '1' FROM generate_series(1, 200) i});
$s->rows(q{SELECT count(*) FROM narad.consume('keyed', 100)});
$s->rows(q{SELECT narad.alter_topic('keyed', ordering => 'key')});
my ($leased, $state) = (0, '00000');
while ($leased < 300000)
{
	$state = $s->try(q{WITH put AS (INSERT INTO receipts SELECT receipt
		FROM narad.consume('filled', 10000, visibility_timeout => '1 hour') RETURNING 1) SELECT count(*) FROM put});
	last if $state ne '00000' || $s->{rows}[0][0] == 0;
	$leased += $s->{rows}[0][0];
}
is($state, '53200', 'leases end with the memory') or diag("$leased leased");
like($s->{error}, qr/out of shared memory for leases/, '... for that reason');
cmp_ok($leased, '>', 20000, "not before it is used ($leased leases)");

foreach my $view (@views)
{
	is($s->try("SELECT count(*) FROM narad.$view"), '00000', "the view $view can be read") or diag($s->{error});
}
is($s->value(q{SELECT sum(in_flight) FROM narad.groups WHERE topic = 'filled'::regclass}), $leased, 'groups tells who has it');
is($s->value(q{SELECT count(*) FROM narad.leases WHERE topic = 'filled'::regclass}), $leased, 'leases too');
is(join(' ', @{ ($s->rows(q{SELECT messages, partitions FROM narad.topics WHERE topic = 'idle'::regclass}))[0] }),
	'3 4', 'a topic that nobody used since the start is shown from its pages');
is($s->value(q{SELECT string_agg(end_offset || '/' || last_stable, ' ' ORDER BY partition) FROM narad.partitions
	WHERE topic = 'idle'::regclass}) =~ /3\/3/ ? 1 : 0, 1, 'with its partitions');
is($s->value(q{SELECT count(*) FROM narad.groups WHERE topic = 'idle'::regclass AND in_flight = 0}), 4, 'and groups');

# Wraparound does not wait for memory.
foreach my $topic (qw(idle filled))
{
	is($s->try("VACUUM (FREEZE) $topic"), '00000', "VACUUM freezes $topic") or diag($s->{error});
}
is($s->value(q{SELECT count(*) FROM pg_class WHERE relname = 'filled' AND age(relfrozenxid) < 100}), 1,
	'and relfrozenxid moves');

# In use again, and new ones.
is($s->value(q{SELECT count(*) FROM narad.produce_array('idle', '[3]')}), 1, 'another topic can be produced to');
is($s->try(qq{SELECT narad.create_topic('new$_', partitions => 3)}), '00000', "topic new$_ can be made") for 1 .. 5;
is($s->try(q{SELECT narad.create_group('filled', 'second')}), '00000', 'a group can be made');
is($s->value(qq{SELECT count(*) FROM narad.produce_array('new$_', '[1, 2]')}), 2, "new$_ can be produced to") for 1 .. 5;
is($s->value(q{SELECT count(f) FROM generate_series(0, 3) p, narad.fetch('idle', p, 0) f}), 4, 'and fetched from');
is($s->try(q{BEGIN; SAVEPOINT a; INSERT INTO filled (value) VALUES ('"more"'); ROLLBACK TO a;
	INSERT INTO filled (value) VALUES ('"more"'); COMMIT}), '00000', 'and to the full one');
is($s->try(q{SELECT narad.consume('new1')}), '53200', 'leases are refused');

# Without a timeout it would not end.
$s->rows(q{SET statement_timeout = '1 min'});
is($s->try(q{SELECT narad.consume('keyed')}), '53200', 'so is what keys have to be noted for');
$s->rows(q{RESET statement_timeout});
$s->rows(q{DROP TABLE keyed});

# Settling works, and rolling it back.
is($s->try(q{BEGIN; SELECT narad.ack(array_agg(receipt)) FROM (SELECT receipt FROM receipts LIMIT 20000) r; ROLLBACK}),
	'00000', 'acks can be rolled back');
is($s->value(q{SELECT sum(in_flight) FROM narad.groups WHERE topic = 'filled'::regclass}), $leased, '... and then are leases as before');
is($s->try(q{WITH d AS (DELETE FROM receipts WHERE ctid IN (SELECT ctid FROM receipts LIMIT 100) RETURNING receipt)
	SELECT narad.nack(array_agg(receipt)) FROM d}), '00000', 'nack works');
is($s->value(q{SELECT count(*) FROM narad.consume('filled', 100)}), 100, 'what came back can be taken: its place is there');
is($s->try(q{WITH d AS (DELETE FROM receipts WHERE ctid IN (SELECT ctid FROM receipts LIMIT 15000) RETURNING receipt)
	SELECT narad.ack(array_agg(receipt)) FROM d}), '00000', 'ack works');
cmp_ok($s->value(q{SELECT count(*) FROM narad.consume('filled', 5000)}), '>=', 5000, 'and makes room for leases');
is($s->value(q{SELECT count(*) FROM narad.consume('new1')}), 1, '... elsewhere, too');
is($s->try(q{WITH d AS (DELETE FROM receipts RETURNING receipt) SELECT narad.ack(array_agg(receipt)) FROM d}), '00000', 'the rest');

# A take that ran into the limit, rolled back.
$s->try(q{BEGIN});
my $taken = 0;
foreach (1 .. 40)
{
	last if $s->try(q{SELECT count(*) FROM narad.consume('filled', 10000)}) ne '00000';
	last if $s->{rows}[0][0] == 0;
	$taken += $s->{rows}[0][0];
}
$s->try(q{ROLLBACK});
cmp_ok($taken, '>', 10000, "a transaction took $taken");
is($s->value(q{SELECT count(*) FROM narad.leases}), 5101, 'its end gives them back');
my $gone = 0;
while ((my $n = $s->value(q{WITH m AS MATERIALIZED (SELECT receipt FROM narad.consume('filled', 10000)),
	a AS (SELECT narad.ack(coalesce(array_agg(receipt), '{}')) FROM m) SELECT count(*) FROM m, a})) > 0)
{
	$gone += $n;
}
cmp_ok($gone, '>', 200000, "everything else is consumed ($gone)");
$s->quit;

# A damaged metapage of one topic.
my $file = $node->data_dir . '/' . one_value($node, q{SELECT pg_relation_filepath('idle')});
$node->stop;
open(my $fh, '+<:raw', $file) or die "cannot open: $!";
seek($fh, 100, 0);
print $fh "\xff" x 50;
close($fh);
$node->start;
my ($out, $err);
foreach my $view (@views)
{
	is($node->psql('postgres', "SELECT count(*) FROM narad.$view", stdout => \$out, stderr => \$err),
		0, "$view can be read past a damaged topic");
	like($err, qr/WARNING: .*topic "idle" cannot be read in full/, '... with a warning');
}
is(one_value($node, q{SET client_min_messages = error; SELECT messages IS NULL, bytes > 0, max_in_flight
	FROM narad.topics WHERE topic = 'idle'::regclass}), 't|t|1024', 'it is shown as far as it can be');
is(one_value($node, q{SET client_min_messages = error; SELECT count(*), count(partition)
	FROM narad.partitions WHERE topic = 'idle'::regclass}), '1|0', 'in partitions, too');
is(one_value($node, q{SET client_min_messages = error; SELECT count(*), count(messages) FROM narad.topics}),
	'7|6', 'and the others as ever');
$node->stop;
done_testing();
