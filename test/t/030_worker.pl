# Copyright (c) 2026, the Narad authors
#
# I1: what was leased and not settled comes again after any end of a session.
# I4: a receipt of a lease that ended settles nothing.
# I5: an ack takes effect if and only if its transaction commits, also when
#     the session or the server is killed.
# I6: plain acks are made durable by the worker, or by a clean stop, with
#     nobody's help.
# I9: an idle server writes no WAL; the worker sleeps without a snapshot, and is
#     in nobody's way.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";
use Time::HiRes qw(time);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('worker',
	conf => [ 'restart_after_crash = on', 'autovacuum = off' ]);
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
CREATE TABLE effect (off bigint);
});

# A topic with messages 0 .. $n - 1.
sub fresh_topic
{
	my ($t, $n) = @_;
	$node->safe_psql('postgres', "SELECT narad.create_topic('$t', visibility_timeout => '10 min');"
		  . " SELECT count(*) FROM narad.produce_batch('$t',"
		  . " ARRAY(SELECT to_jsonb(i) FROM generate_series(0, $n - 1) i))");
	return;
}

# Leases; receipts by offset.
sub lease
{
	my ($s, $t, $n) = @_;
	return map { $_->[1] => $_->[0] }
	  $s->rows("SELECT receipt, msg_offset FROM narad.consume('$t', $n)");
}

# The offsets that come, in order.
sub comes
{
	my ($t) = @_;
	return one_value($node, "SELECT coalesce(string_agg(msg_offset::text, ' ' ORDER BY msg_offset), '')"
		  . " FROM narad.consume('$t', 1000)");
}

# Until the acks so far would survive a crash.
sub wait_until_durable
{
	my ($t) = @_;
	return poll_until("acks of $t are durable", sub {
		return 0 if one_value($node, 'SELECT coalesce(sum(unpersisted_ranges), 1) FROM narad.groups'
			  . " WHERE topic = '$t'::regclass") ne '0';
		my $lsn = one_value($node, 'SELECT pg_current_wal_insert_lsn()');
		return poll_until('WAL is flushed', sub {
			one_value($node, "SELECT pg_current_wal_flush_lsn() >= '$lsn'") eq 't' });
	});
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

# Who is there.
fresh_topic('seen', 3);
$node->safe_psql('postgres', "SELECT narad.consume('seen')");
ok($node->poll_query_until('postgres', q{
SELECT array_agg(backend_type ORDER BY backend_type) = '{narad launcher,narad worker}'
FROM pg_stat_activity WHERE backend_type LIKE 'narad %'}),
	'the launcher and the worker are in pg_stat_activity');
is(one_value($node, q{SELECT datname FROM pg_stat_activity WHERE backend_type = 'narad worker'}),
	'postgres', 'the worker belongs to the database with the topic');

# Plain acks are made durable without a further call.
{
	fresh_topic('plain', 10);
	my $s = narad_session($node);
	my %r = lease($s, 'plain', 10);
	$s->rows('SELECT narad.ack(' . sql_array(@r{ 0, 1, 2, 5, 7 }) . ')');
	ok(wait_until_durable('plain'), 'the worker persists plain acks');
	crash();
	is(comes('plain'), '3 4 6 8 9', 'after a crash the others come, and only they');
	$s->quit;
	$s = narad_session($node);
	is($s->try("SELECT narad.ack('$r{3}')"), 'NR410', 'a lease does not survive a restart');
	is($s->try("SELECT narad.ack('$r{0}')"), 'NR410', 'nor does the receipt of what was acked');
	$s->quit;
}

# A clean stop loses none, however lazy the worker is.
{
	$node->append_conf('postgresql.conf',
		"narad.frontier_write_interval = '10s'\nnarad.frontier_flush_interval = '60s'");
	$node->restart;
	fresh_topic('clean', 40);
	foreach my $mode ('fast', 'smart', 'fast')
	{
		my $s = narad_session($node);
		my %r = lease($s, 'clean', 5);
		my @offsets = sort { $a <=> $b } keys %r;
		$s->rows('SELECT narad.ack(' . sql_array(@r{ @offsets[ 0, 2, 4 ] }) . ')');
		$s->quit if $mode eq 'smart';
		$node->stop($mode);
		$node->start;
		my $s2 = narad_session($node);
		my %again = lease($s2, 'clean', 2);
		is(join(' ', sort { $a <=> $b } keys %again), join(' ', @offsets[ 1, 3 ]),
			"after a stop ($mode) right after acks, what was not acked comes first");
		$s2->rows('SELECT narad.ack(' . sql_array(values %again) . ')');
		$s2->quit;
		$s->quit;
	}
	$node->restart;
	is(comes('clean'), join(' ', 15 .. 39), 'and nothing acked came again');
	$node->adjust_conf('postgresql.conf', 'narad.frontier_write_interval', undef);
	$node->adjust_conf('postgresql.conf', 'narad.frontier_flush_interval', undef);
	$node->restart;
}

# Sessions that end inside a transaction.
{
	fresh_topic('ends', 6);
	my $s = narad_session($node);
	my $other = narad_session($node);
	my %kept = lease($s, 'ends', 2);
	$s->rows('BEGIN');
	$s->rows('INSERT INTO effect VALUES (0)');
	my %open = lease($s, 'ends', 2);
	$s->rows("SELECT narad.ack('$open{2}')");
	$s->rows("SELECT narad.ack('$kept{0}')");
	is($other->value('SELECT count(*) FROM narad.leases WHERE topic = \'ends\'::regclass AND pinned'),
		2, 'acks of an open transaction pin');
	$other->rows('SELECT pg_terminate_backend(' . $s->backend_pid . ')');
	is($s->try('SELECT 1'), undef, 'a session is terminated inside its transaction');
	ok($node->poll_query_until('postgres', q{
SELECT array_agg(msg_offset ORDER BY msg_offset) = '{0,1}' FROM narad.leases WHERE topic = 'ends'::regclass}),
		'leases taken in that transaction are released, those taken before stay');
	is(one_value($node, q{SELECT string_agg(msg_offset || '.' || deliveries, ' ' ORDER BY msg_offset)
FROM narad.consume('ends', 100)}), '2.2 3.2 4.1 5.1', 'they come again at once');
	is(one_value($node, 'SELECT count(*) FROM effect'), '0', 'the effect is gone, as the ack is');
	is($other->try("SELECT narad.ack('$open{2}')"), 'NR410', 'a receipt of a released lease is stale');
	is($other->try("SELECT narad.ack('$kept{0}')"), '00000', 'a receipt outlives its session');
	$_->quit foreach ($s, $other);
}

# A backend killed: the server restarts, and the ack with its effect is void.
{
	fresh_topic('killed', 4);
	my $s = narad_session($node);
	my $done = narad_session($node);
	$done->rows('BEGIN');
	my %d = lease($done, 'killed', 1);
	$done->rows('INSERT INTO effect VALUES (1)');
	$done->rows("SELECT narad.ack('$d{0}')");
	$done->rows('COMMIT');
	$s->rows('BEGIN');
	my %r = lease($s, 'killed', 2);
	$s->rows('INSERT INTO effect VALUES (2)');
	$s->rows('SELECT narad.ack(' . sql_array(values %r) . ')');
	kill('KILL', $s->backend_pid);
	is($s->try('SELECT 1'), undef, 'a backend is killed inside its transaction');
	ok(poll_until('the other session is gone', sub { !defined $done->try('SELECT 1') }),
		'and the server restarts');
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
	is(comes('killed'), '1 2 3', 'an ack that never committed is void, one that did stands');
	is(one_value($node, 'SELECT string_agg(off::text, \' \') FROM effect'), '1', 'as its effect');
	$_->quit foreach ($s, $done);
}

# The same when the page with the ack reached the disk before the end.
{
	fresh_topic('flushed', 4);
	my $s = narad_session($node);
	$s->rows('BEGIN');
	my %r = lease($s, 'flushed', 2);
	$s->rows('INSERT INTO effect VALUES (3)');
	$s->rows('SELECT narad.ack(' . sql_array(values %r) . ')');
	$node->safe_psql('postgres', "SELECT narad.produce('flushed', '4'); CHECKPOINT");
	crash();
	is(comes('flushed'), '0 1 2 3 4', 'an ack of an open transaction is void after a checkpoint, too');
	$s->quit;
}

# A worker that dies is replaced, and what it had not written is not forgotten.
{
	fresh_topic('replaced', 4);
	my $pid = one_value($node, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'narad worker'});
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	my $s = narad_session($node);
	my %r = lease($s, 'replaced', 4);
	$s->rows("SELECT narad.ack('$r{1}')");
	ok($node->poll_query_until('postgres', qq{
SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'narad worker' AND pid <> $pid}),
		'a terminated worker is replaced');
	ok(wait_until_durable('replaced'), 'and the next one persists acks');
	crash();
	is(comes('replaced'), '0 2 3', 'which then stand');
	$s->quit;
}

# I9.  Nothing happens, and nothing is written.
{
	fresh_topic('idle', 10);
	$node->safe_psql('postgres', "SELECT narad.ack(array_agg(receipt)) FROM narad.consume('idle', 5)");
	ok(wait_until_durable('idle'), 'the last acks are written');
	$node->safe_psql('postgres', 'CHECKPOINT');
	# Several times each of the worker's intervals; other writers of WAL may
	# end what they had begun.
	my ($lsn, $since) = ('', 0);
	ok(poll_until('no WAL is written for three seconds', sub {
		my $now = one_value($node, 'SELECT pg_current_wal_insert_lsn()');
		($lsn, $since) = ($now, time()) if $now ne $lsn;
		return time() - $since > 3;
	}), 'an idle server writes no WAL');
	is(one_value($node, q{
SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'narad%'
	AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR xact_start IS NOT NULL)}), '0',
		'the worker sleeps outside a transaction');

	# Nor do those who come and go without a message, or a setting that is given again.
	my $script = PostgreSQL::Test::Utils::tempdir() . '/come_and_go.sql';
	append_to_file($script, <<'EOF');
SELECT narad.consume('idle', 10, wait => '10 ms', consumer_group => 'nothing');
CALL narad.wait('idle', '10 ms', 'nothing');
SELECT narad.fetch('idle', 0, 10, wait => '10 ms');
SELECT narad.consume('idle', notify => 'here', consumer_group => 'nothing');
EOF
	$node->safe_psql('postgres', "SELECT narad.create_group('idle', 'nothing', 'latest')");
	$node->safe_psql('postgres', "SELECT narad.alter_topic('idle', cleanup => 'settled', retention => '1 day',"
		  . " retention_bytes => 1000000, max_deliveries => 5, retry_delay => '1 s', retry_backoff => 2)");
	my @quiet = (
		[ 'waiters that come and go write no WAL', sub {
			run_log([ 'pgbench', '-n', '-C', '-c', 4, '-t', 5, '-f', $script, '-h', $node->host,
				'-p', $node->port, 'postgres' ]) or die 'pgbench failed' } ],
		[ 'nor do those who are asleep when they are ended', sub {
			my $s = narad_session($node);
			my $pid = $s->backend_pid;
			$s->send("SELECT narad.consume('idle', wait => '60 s', consumer_group => 'nothing')");
			poll_until('one waits', sub { one_value($node, "SELECT count(*) FROM narad.waiters WHERE pid = $pid") == 1 });
			$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
			$s->finish } ],
		[ 'nor does a setting that is given again', sub {
			$node->safe_psql('postgres', q{SELECT narad.alter_topic('idle', cleanup => 'settled', retention => '1 day',
	retention_bytes => 1000000, max_deliveries => 5, retry_delay => '1 s', retry_backoff => 2, ordering => 'none',
	partitions => 1, reset => '{dead_letter_topic,dedup_window}') FROM generate_series(1, 20)}) } ]);
	foreach (@quiet)
	{
		my ($name, $code) = @$_;
		my ($from, $to) = ('', '0');

		# Of others, who may write now and then, several rounds are free.
		for (my $i = 0; $i < 10 && $from ne $to; $i++)
		{
			$from = one_value($node, 'SELECT pg_current_wal_insert_lsn()');
			$code->();
			$to = one_value($node, 'SELECT pg_current_wal_insert_lsn()');
		}
		is($to, $from, $name);
	}
}

# Databases: the worker of an idle one is in nobody's way.
sub make_database
{
	my ($db) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, q{
CREATE EXTENSION narad;
SELECT narad.create_topic('t');
SELECT narad.produce('t', '1');
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('t');
});
	return $node->poll_query_until('postgres',
		qq{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'narad worker' AND datname = '$db'});
}

sub at_once
{
	my ($sql, $name) = @_;
	my $start = time();
	my ($ret, undef, $errors) = $node->psql('postgres', $sql);
	is($ret, 0, $name) or diag($errors);
	cmp_ok(time() - $start, '<', 4, "$name at once");
	return;
}

ok(make_database('db1'), 'a second database gets a worker of its own');
at_once('ALTER DATABASE db1 RENAME TO db2', 'a database with an idle worker is renamed');
$node->safe_psql('db2', "SELECT narad.produce('t', '2')");
is(one_value($node, "SELECT narad.ack(array_agg(receipt)) IS NOT NULL FROM narad.consume('t')", 'db2'),
	't', 'and works');
at_once('CREATE DATABASE db3 TEMPLATE db2', 'it is copied');
is(one_value($node, "SELECT count(*) FROM t", 'db3'), '2', 'with its messages');
is(one_value($node, "SELECT count(*) FROM narad.consume('t', 10)", 'db3'), '0', 'and their acks');
$node->safe_psql('db3', "SELECT narad.produce('t', '3')");
is(one_value($node, "SELECT count(*) FROM narad.consume('t', 10)", 'db2'), '0',
	'but leads a life of its own');
is(one_value($node, "SELECT string_agg(value::text, ' ') FROM narad.consume('t', 10)", 'db3'), '3',
	'from there on');
at_once('DROP DATABASE db2', 'a database with an idle worker is dropped');
at_once('DROP DATABASE db3 WITH (FORCE)', 'and one with force');

ok(make_database('db4'), 'a database gets a worker');
my ($ret, undef, $errors) = $node->psql('db4', 'DROP EXTENSION narad');
isnt($ret, 0, 'DROP EXTENSION with topics is refused');
is(one_value($node, "SELECT count(*) FROM t", 'db4'), '1', 'and harms nothing');
$node->safe_psql('db4', 'DROP EXTENSION narad CASCADE');
ok($node->poll_query_until('postgres',
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'narad worker' AND datname = 'db4'}),
	'DROP EXTENSION CASCADE sends the worker home');
is(one_value($node, q{SELECT count(*) FROM pg_class WHERE relname = 't'}, 'db4'), '0',
	'and takes the topics along');
$node->safe_psql('db4', q{
CREATE EXTENSION narad;
SELECT narad.create_topic('t');
SELECT narad.produce('t', '"new"')});
is(one_value($node, "SELECT value FROM narad.consume('t')", 'db4'), '"new"',
	'the extension can be made again');
$node->safe_psql('db4', 'BEGIN; DROP EXTENSION narad CASCADE; ROLLBACK');
is(one_value($node, "SELECT count(*) FROM t", 'db4'), '1', 'a drop that is rolled back drops nothing');
at_once('DROP DATABASE db4', 'DROP DATABASE after that');
$node->stop;
log_is_clean($node, 'the log tells of no crash but ours', kills => 1);

# No room for a worker: consumers go on, and persist acks themselves.
my $small = narad_node('small', conf => [ 'max_worker_processes = 2',
		"narad.frontier_write_interval = '50ms'" ]);
$small->start;
$node = $small;
$node->safe_psql('postgres', 'CREATE EXTENSION narad');
fresh_topic('alone', 0);
{
	my $s = narad_session($node);
	my ($before, $last) = (0, 0);

	is(one_value($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'narad worker'"), '0',
		'there is no worker');
	$s->rows("SELECT narad.produce('alone', '\"kept\"')");
	lease($s, 'alone', 1);
	# An ack late enough writes those before it.
	ok(poll_until('a backend persists acks', sub {
		$s->rows("SELECT narad.produce('alone', '1')");
		my %r = lease($s, 'alone', 1);
		($last) = keys %r;
		$s->rows("SELECT narad.ack('$r{$last}')");
		my $now = $s->value('SELECT sum(unpersisted_ranges) FROM narad.groups');
		return 1 if $now < $before;
		$before = $now;
		return 0;
	}), 'without a worker consumers persist acks');
	my $lsn = one_value($node, 'SELECT pg_current_wal_insert_lsn()');
	$node->poll_query_until('postgres', "SELECT pg_current_wal_flush_lsn() >= '$lsn'");
	crash();
	like(comes('alone'), qr/^0( $last)?$/, 'which then stand');
	$s->quit;
}
$node->stop;
log_is_clean($node, 'its log is clean');
done_testing();
