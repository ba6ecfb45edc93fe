# Copyright (c) 2026, the Narad authors
#
# What must be there once is there once: ids and sequence numbers are known
# after a crash, a restart, on a promoted standby and of prepared transactions,
# as far as their transactions committed; an id that there is no memory for is
# refused, and not taken for new.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $testing = $ENV{NARAD_TESTING};
my $node = narad_node('primary', streaming => 1,
	conf => [ 'max_prepared_transactions = 10', 'narad.memory_limit = 8MB', 'autovacuum = off',
		"wal_consistency_checking = 'all, narad'" ]);
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
CREATE FUNCTION stop_arm(text) RETURNS void AS '$libdir/narad', 'narad_stop_arm' LANGUAGE C STRICT;
CREATE FUNCTION stop_release(text) RETURNS void AS '$libdir/narad', 'narad_stop_release' LANGUAGE C STRICT;
CREATE FUNCTION stop_waiting(text) RETURNS integer AS '$libdir/narad', 'narad_stop_waiting' LANGUAGE C STRICT;
}) if $testing;
$node->safe_psql('postgres', q{CREATE EXTENSION narad}) unless $testing;
$node->safe_psql('postgres', q{
SELECT narad.create_topic('t', partitions => 3, segment_size => '256kB');
SELECT narad.create_topic('once', partitions => 2);
});
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

# "new" or "duplicate": has producing an id added a message?
sub produce
{
	my ($s, $id) = @_;
	my $before = $s->value(q{SELECT sum(end_offset) FROM narad.offsets('t')});
	my @at = $s->rows(qq{SELECT partition, msg_offset FROM narad.produce('t', '"$id"', dedup_id => '$id')});
	my $after = $s->value(q{SELECT sum(end_offset) FROM narad.offsets('t')});
	my $value = $s->value(qq{SELECT value #>> '{}' FROM t WHERE partition = $at[0][0] AND msg_offset = $at[0][1]});
	return "at a message of $value" if $value ne $id;
	return $after > $before ? 'new' : 'duplicate';
}

sub once
{
	my ($s, $producer, $sequence) = @_;
	my $state = $s->try(qq{SELECT duplicate FROM narad.produce_once('once', '"$producer $sequence"', '$producer', $sequence)});
	return $state if $state ne '00000';
	return $s->{rows}[0][0] eq 't' ? 'duplicate' : 'new';
}

# ------------------------------------------------------- over many segments

my $s = narad_session($node);
$s->rows(q{SELECT count(*) FROM narad.produce_batch('t', ARRAY(SELECT to_jsonb('bulk ' || i) FROM generate_series(1, 3000) i),
	headers => ARRAY(SELECT to_jsonb(repeat(md5(i::text), 5)) FROM generate_series(1, 3000) i),
	dedup_ids => ARRAY(SELECT 'bulk ' || i FROM generate_series(1, 3000) i))});
cmp_ok($s->value(q{SELECT count(*) FROM narad.segments WHERE topic = 't'::regclass AND state = 'sealed'}), '>', 3,
	'ids in several segments');
is(produce($s, 'committed'), 'new', 'an id');
is(once($s, 'p', 1), 'new', 'a sequence number');
is(once($s, 'p', 2), 'new', 'and the next');

# ------------------------------------------------------------------- a crash

$s->rows(q{BEGIN});
$s->rows(q{SELECT * FROM narad.produce('t', '"open"', dedup_id => 'open')});
$s->rows(q{SELECT * FROM narad.produce_once('once', '"lost"', 'p', 3)});
$s->rows(q{SELECT * FROM narad.produce_once('once', '"lost"', 'q', 7)});
my $prepared = narad_session($node);
$prepared->rows($_) foreach (q{BEGIN},
	q{SELECT * FROM narad.produce('t', '"will commit"', dedup_id => 'will commit')},
	q{SELECT * FROM narad.produce_once('once', '"prepared 1"', 'prepared', 1)},
	q{PREPARE TRANSACTION 'commit'}, q{BEGIN},
	q{SELECT * FROM narad.produce('t', '"will not"', dedup_id => 'will not')},
	q{SELECT * FROM narad.produce_once('once', '"rolled 1"', 'rolled', 1)},
	q{PREPARE TRANSACTION 'rollback'});
$prepared->quit;
$node->stop('immediate');
$s->quit;
$node->start;

$s = narad_session($node);
is(produce($s, 'committed'), 'duplicate', 'after a crash an id is known');
is(produce($s, 'bulk 1'), 'duplicate', 'also of the first segment');
is(produce($s, 'bulk 3000'), 'duplicate', 'and of the last');
is(produce($s, 'open'), 'new', 'not that of a transaction that was lost');
is(produce($s, 'open'), 'duplicate', 'which is known from now on');
is(once($s, 'p', 2), 'duplicate', 'a sequence number is known');
is(once($s, 'p', 4), 'NR412', 'what was lost leaves a gap');
is(once($s, 'p', 3), 'new', 'and can be sent again');
is(once($s, 'q', 5), 'new', 'a producer whose first message was lost is unknown');

# ---------------------------------------------------- prepared transactions

my $waiting = narad_session($node);
my $rolled = narad_session($node);
foreach my $pair ([ $waiting, 'will commit', 'prepared' ], [ $rolled, 'will not', 'rolled' ])
{
	$pair->[0]->rows(qq{SET application_name = '$pair->[2]'});
	$pair->[0]->send(qq{SELECT duplicate, (SELECT msg_offset FROM narad.produce('t', '"second"', dedup_id => '$pair->[1]'))
		FROM narad.produce_once('once', '"second"', '$pair->[2]', 1)});
}
ok(poll_until('both wait', sub {
	$s->value(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
		AND application_name IN ('prepared', 'rolled')}) == 2 }), 'who is second waits for a prepared transaction');
$s->rows(q{COMMIT PREPARED 'commit'});
$s->rows(q{ROLLBACK PREPARED 'rollback'});
is($waiting->finish, '00000', 'committed') or diag($waiting->{error});
is($waiting->{rows}[0][0], 't', '... it was a duplicate');
is($rolled->finish, '00000', 'rolled back') or diag($rolled->{error});
is($rolled->{rows}[0][0], 'f', '... it was not');
is($s->value(q{SELECT count(*) FROM t WHERE value IN ('"will commit"', '"will not"', '"second"')}), 2, 'each is there once');
$_->quit foreach ($waiting, $rolled);

# --------------------------------- reading the log: others wait, and go on

SKIP:
{
	skip 'no stop points', 6 unless $testing;
	$node->restart;
	$s = narad_session($node);
	$s->rows(q{SELECT stop_arm('dedup-fill')});
	my ($first, $second) = (narad_session($node), narad_session($node));
	$first->rows(q{SET application_name = 'first'});
	$second->rows(q{SET application_name = 'second'});
	$first->send(q{SELECT msg_offset FROM narad.produce('t', '"x"', dedup_id => 'filled')});
	ok(poll_until('somebody reads the log', sub { $s->value(q{SELECT stop_waiting('dedup-fill')}) == 1 }), 'one reads the log');
	$second->send(q{SELECT count(*) FROM narad.produce('t', '"y"', dedup_id => 'bulk 17')});
	ok(poll_until('the other waits', sub { $s->value(q{SELECT count(*) FROM pg_stat_activity
		WHERE application_name = 'second' AND wait_event_type = 'Lock'}) == 1 }), 'another waits for that');
	$s->rows(q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'first'});
	is($first->finish, '57014', 'the first is cancelled');
	$s->rows(q{SELECT stop_release('dedup-fill')});
	is($second->finish, '00000', 'the second reads it itself') or diag($second->{error});
	is(produce($s, 'bulk 18'), 'duplicate', 'and nothing is missing');
	is(produce($s, 'filled'), 'new', 'nor is there too much');
	$_->quit foreach ($first, $second);
}

# ------------------------------------------- a crash before the commit record

SKIP:
{
	skip 'no stop points', 3 unless $testing;
	$s->rows(q{SELECT stop_arm('producer-written')});
	my $held = narad_session($node);
	$held->send(q{SELECT * FROM narad.produce_once('once', '"held"', 'p', 4)});
	ok(poll_until('it has written its entry', sub { $s->value(q{SELECT stop_waiting('producer-written')}) == 1 }), 'an entry is written');
	$s->rows(q{CHECKPOINT});
	$node->stop('immediate');
	$held->quit;
	$node->start;
	$s = narad_session($node);
	is(once($s, 'p', 5), 'NR412', 'without the commit record it is void');
	is(once($s, 'p', 4), 'new', 'and the number free');
}

# ------------------------------------------- records from a clock that ran fast

$s->rows(q{SELECT narad.create_topic('clock')});
$s->rows(q{INSERT INTO clock (partition, msg_offset, produced_at, value) VALUES (0, 0, now() + '1 hour', '0')});
is($s->value(q{SELECT msg_offset FROM narad.produce('clock', '1', dedup_id => 'fast')}), 1, 'an id in the future');
$s->quit;
$node->restart;
$s = narad_session($node);
is($s->value(q{SELECT produced_at > now() + interval '30 min' FROM clock WHERE msg_offset = 1}), 't', 'as the log has it');
is($s->value(q{SELECT msg_offset FROM narad.produce('clock', '2', dedup_id => 'fast')}), 1, 'it is known after a restart');
$s->rows(q{SELECT narad.alter_topic('clock', dedup_window => '1 ms')});
ok(poll_until('the window is over', sub {
	$s->value(q{SELECT msg_offset FROM narad.produce('clock', '3', dedup_id => 'fast')}) > 1 }), 'and forgotten after the window');

# ------------------------------------------------------------------- memory

$s->rows(q{SELECT narad.create_topic('big')});
my ($n, $state) = (0, '00000');
while ($n < 200000 && $state eq '00000')
{
	$state = $s->try(qq{SELECT count(*) FROM narad.produce_batch('big', ARRAY(SELECT to_jsonb(i) FROM generate_series($n + 1, $n + 5000) i),
		dedup_ids => ARRAY(SELECT 'id ' || i FROM generate_series($n + 1, $n + 5000) i))});
	$n += 5000 if $state eq '00000';
}
is($state, '53200', "ids end with the memory ($n)");
like($s->{error}, qr/out of shared memory for deduplication ids/, '... for that reason');
cmp_ok($n, '>=', 50000, 'not before it is used');
is($s->value(q{SELECT count(*) FROM big}), $n, 'nothing of the failed call is there');
is($s->try(q{SELECT count(*) FROM narad.produce('big', '0', dedup_id => 'id 17')}), '00000', 'a duplicate is still known');
is($s->value(q{SELECT count(*) FROM big}), $n, '... as one');
is($s->try(q{SELECT narad.produce('big', '0')}), '00000', 'messages without an id go on');
is($s->try(q{SELECT count(narad.ack(receipt)) FROM narad.consume('big', 10)}), '00000', 'and so do consumers');
$s->rows(q{SELECT narad.alter_topic('big', dedup_window => '1 ms')});
ok(poll_until('old ids make room', sub {
	$s->try(q{SELECT count(*) FROM narad.produce('big', '1', dedup_id => 'more')}) eq '00000' }), 'with a shorter window old ids make room');
$s->rows(q{DROP TABLE big});

# Ids that are too old make room by themselves, for whoever needs it.
$s->rows(q{SELECT narad.create_topic('burst', dedup_window => '10 s')});
$s->rows(q{SELECT narad.create_topic('other')});
my $other = q{SELECT count(*) FROM narad.produce('other', '1', dedup_id => 'x' || clock_timestamp())};
($n, $state) = (0, '00000');
while ($n < 2000000 && $state eq '00000')
{
	$state = $s->try(qq{SELECT count(*) FROM narad.produce_batch('burst', ARRAY(SELECT to_jsonb(i) FROM generate_series($n + 1, $n + 5000) i),
		dedup_ids => ARRAY(SELECT 'id ' || i FROM generate_series($n + 1, $n + 5000) i))});
	$n += 5000 if $state eq '00000';
}
is($state, '53200', "a burst of ids takes the memory ($n)");
is($s->try($other), '53200', 'another topic has none left');
ok(poll_until('the window is over', sub { $s->try($other) eq '00000' }), 'until they are forgotten, though nobody produces');
is($s->value(q{SELECT msg_offset FROM narad.produce('burst', '0', dedup_id => 'id 1')}), $n, '... and free');
$s->rows(q{SELECT narad.alter_topic('burst', dedup_window => '1 hour')});
($n, $state) = (0, '00000');
while ($n < 2000000 && $state eq '00000')
{
	$state = $s->try(qq{SELECT count(*) FROM narad.produce_batch('burst', ARRAY(SELECT to_jsonb(i) FROM generate_series($n + 1, $n + 5000) i),
		dedup_ids => ARRAY(SELECT 'again ' || i FROM generate_series($n + 1, $n + 5000) i))});
	$n += 5000 if $state eq '00000';
}
is($s->try($other), '53200', 'the same again');
$s->rows(q{SELECT narad.alter_topic('burst', dedup_window => '1 s')});
ok(poll_until('the window is over', sub { $s->try($other) eq '00000' }), 'a shorter window counts for those that are there');
$s->rows(q{DROP TABLE burst, other});

# --------------------------------------------------------- retention and ids

# An id goes with its message, though the window is not over.
$s->rows(q{SELECT narad.create_topic('aged', segment_size => '256kB')});
$s->rows(q{SELECT count(*) FROM narad.produce('aged', '"first"', dedup_id => 'first')});
$s->rows(q{SELECT count(*) FROM narad.produce_batch('aged', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 3000) i),
	headers => ARRAY(SELECT to_jsonb(repeat(md5(i::text), 5)) FROM generate_series(1, 3000) i),
	dedup_ids => ARRAY(SELECT 'aged ' || i FROM generate_series(1, 3000) i))});
is($s->value(q{SELECT msg_offset FROM narad.produce('aged', '0', dedup_id => 'first')}), 0, 'an id in the first segment');
$s->rows(q{SELECT narad.alter_topic('aged', retention_bytes => 1)});
$s->rows(q{SELECT narad.apply_retention('aged')});
cmp_ok($s->value(q{SELECT earliest FROM narad.offsets('aged')}), '>', 0, 'that retention has dropped');
$s->rows(q{SELECT narad.alter_topic('aged', reset => '{retention_bytes}')});
is($s->value(q{SELECT msg_offset FROM narad.produce('aged', '3000', dedup_id => 'aged 3000')}), 3000, 'an id that is kept is known');
is($s->value(q{SELECT msg_offset FROM narad.produce('aged', '"second"', dedup_id => 'first')}), 3001, 'the one that went is free');
is($s->value(q{SELECT msg_offset FROM narad.produce('aged', '"third"', dedup_id => 'first')}), 3001, '... once');
$s->quit;
$node->stop('immediate');
$node->start;
$s = narad_session($node);
is($s->value(q{SELECT msg_offset FROM narad.produce('aged', '"fourth"', dedup_id => 'first')}), 3001, 'after a crash the second message counts');
is($s->value(q{SELECT msg_offset FROM narad.produce('aged', '"new"', dedup_id => 'aged 1')}), 3002, 'and what went is free there, too');

# ---------------------------------------------------------------- promotion

is($s->value(q{SELECT count(*) FROM narad.verify('once')}), 0, 'producer pages are sound');
my $p = $testing ? 4 : 3;
$s->quit;
$node->wait_for_catchup($standby);
$node->stop('immediate');
$standby->promote;
$s = narad_session($standby);
is(produce($s, 'committed'), 'duplicate', 'a promoted standby knows an id');
is(produce($s, 'bulk 1500'), 'duplicate', 'and another');
is(produce($s, 'new there'), 'new', 'a new one is new');
is(once($s, 'p', $p), 'duplicate', 'it knows a sequence number');
is(once($s, 'p', $p + 1), 'new', 'and goes on');
is(once($s, 'prepared', 1), 'duplicate', 'also of a transaction that was prepared');
is($s->value(q{SELECT count(*) FROM narad.verify('once')}), 0, 'producer pages are sound there');
is($s->value(q{SELECT count(*) - count(DISTINCT value) FROM t WHERE value #>> '{}' LIKE 'bulk%'}), 0, 'each id is there once');

# --------------------------------------- what goes as soon as it is settled

# After a crash nobody knows whether there are ids in the segment that was open.
$s->rows(q{SELECT narad.create_topic('settled', segment_size => '256kB', cleanup => 'settled', dedup_window => '1 hour')});
$s->rows(q{SELECT * FROM narad.produce('settled', '"before"', dedup_id => 'before')});
$s->quit;
$standby->stop('immediate');
$standby->start;
$s = narad_session($standby);
$s->rows(q{INSERT INTO settled (value) SELECT to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 1000) i});
$s->rows(q{SELECT narad.seek('settled', 'default', 0, 1001)});
$s->rows(q{SELECT narad.apply_retention('settled')});
is($s->value(q{SELECT msg_offset FROM narad.produce('settled', '"again"', dedup_id => 'before')}), 0,
	'an id of before the crash is known, though all is settled');
is($s->value(q{SELECT count(*) FROM narad.segments WHERE topic = 'settled'::regclass AND state = 'sealed'}) > 1 ? 1 : 0, 1,
	'... since its segment stays');
$s->rows(q{SELECT narad.alter_topic('settled', dedup_window => '1 ms')});
ok(poll_until('it goes', sub {
	$s->rows(q{SELECT narad.apply_retention('settled')});
	$s->value(q{SELECT count(*) FROM narad.segments WHERE topic = 'settled'::regclass}) <= 2 }), 'when the window is over, it goes');
$s->quit;

logs_are_clean('dedup', $node, $standby);
done_testing();
