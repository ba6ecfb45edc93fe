# Copyright (c) 2026, the Narad authors
#
# Delayed messages outlive restarts, crashes and the primary: none comes before
# its time, none is lost, and what was settled does not come again.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('delayed', streaming => 1, conf => [ 'fsync = off', 'autovacuum = off' ]);
$node->start;
my $s = narad_session($node);
$s->rows(q{CREATE EXTENSION narad});

# Times of all lengths, not in the order of offsets; each message says when it
# is due.  One in ten has no delay, one in ten comes long after the test.
sub produce
{
	my ($topic) = @_;
	$s->rows("SELECT narad.create_topic('$topic', partitions => 2)");
	$s->rows("SELECT p.* FROM generate_series(0, 299) i, LATERAL (SELECT CASE WHEN i % 10 = 0 THEN now()
		WHEN i % 10 = 1 THEN now() + interval '1 day' ELSE now() + i * 37 % 20 * interval '200 ms' END AS due) d,
		narad.produce('$topic', to_jsonb(extract(epoch FROM due)), deliver_at => due) p");
	$s->rows("CREATE TABLE ${topic}_seen (partition int, msg_offset bigint, early bool)");
	return;
}

# Takes and acknowledges what is there, once.
sub take
{
	my ($topic) = @_;
	$s->rows("WITH m AS (SELECT * FROM narad.consume('$topic', 1000)), a AS (SELECT count(narad.ack(receipt)) FROM m)
		INSERT INTO ${topic}_seen SELECT partition, msg_offset, extract(epoch FROM clock_timestamp()) < value::numeric
		FROM m, a");
	return $s->value("SELECT count(*) FROM ${topic}_seen");
}

# The rest comes; then only what is due tomorrow is left.
sub check
{
	my ($topic, $what) = @_;
	ok(poll_until('all that is due has come', sub { take($topic) >= 270 }), "$what: all that is due comes");
	take($topic);
	is($s->value("SELECT count(*) FROM ${topic}_seen WHERE early"), 0, "$what: none early");
	is($s->value("SELECT count(DISTINCT (partition, msg_offset)) || '/' || count(*) FROM ${topic}_seen"), '270/270',
		"$what: each once");
	is($s->value("SELECT sum(scheduled) FROM narad.groups WHERE topic = '$topic'::regclass"), 30,
		"$what: the others wait");
	is($s->value("SELECT count(*) FROM narad.verify('$topic')"), 0, "$what: nothing is wrong");
	return;
}

produce('fast');
cmp_ok(take('fast'), '>=', 30, 'what has no delay comes');
$s->quit;
$node->restart;
$s = narad_session($node);
check('fast', 'after a restart');

# What was taken before a crash was written with its effect, so it is settled.
produce('crash');
cmp_ok(take('crash'), '>=', 30, 'what has no delay comes');
$s->quit;
$node->stop('immediate');
$node->start;
$s = narad_session($node);
check('crash', 'after a crash');

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('delayed_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
produce('promoted');
cmp_ok(take('promoted'), '>=', 30, 'what has no delay comes');
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', q{SELECT count(*) FROM promoted}), 300, 'the standby shows all, due or not');
$s->quit;
$node->stop('immediate');
$standby->promote;
$s = narad_session($standby);
check('promoted', 'after a promotion');

# Memory: 16 bytes a message.  When it is used up a delayed message is refused,
# not a plain one, and what there is comes.
$s->quit;
$standby->append_conf('postgresql.conf', 'narad.memory_limit = 8MB');
$standby->restart;
$s = narad_session($standby);
$s->rows(q{SELECT narad.create_topic('filled')});
$s->rows(q{SELECT count(*) FROM generate_series(1, 20) g, narad.produce_batch('filled',
	ARRAY(SELECT to_jsonb(i + g) FROM generate_series(1, 10000) i), deliver_after => '1 day')});
$s->rows(q{SELECT narad.produce('filled', '"visible"')});
is($s->value(q{SELECT value FROM narad.consume('filled')}), '"visible"', 'one behind 200,000 delayed ones comes');
is($s->value(q{SELECT scheduled FROM narad.groups WHERE topic = 'filled'::regclass}), 200000, 'they wait');
my $state = '00000';
foreach (1 .. 40)
{
	$state = $s->try(q{SELECT count(*) FROM narad.produce_batch('filled',
		ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 10000) i), deliver_after => '1 day')});
	last if $state ne '00000';
	$s->try(q{SELECT narad.consume('filled')});
}
is($state, '53200', 'when memory is used up, produce refuses') or diag($s->{error});
is($s->try(q{SELECT narad.produce('filled', '"plain"')}), '00000', 'but takes what has no delay');
$s->quit;
$standby->stop;
logs_are_clean('delayed', $node, $standby);
done_testing();
