# Copyright (c) 2026, the Narad authors
#
# I1, I5, I6: what is in a database's topics, and what its groups have settled,
#     is there in a copy of the database, in another tablespace, with checksums
#     switched on, and after a crash of any of these.
# I12: a database that was moved, dropped or made under an old name, and an
#     extension that was dropped, leave nothing behind that could be taken for
#     its successor's; nor do they leave memory.
# I4: a receipt is of no use in a copy of its database.
#
# pg_checksums, CREATE DATABASE ... TEMPLATE, tablespaces, DROP EXTENSION, DROP
# DATABASE.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('main', conf => [ 'autovacuum = off', 'narad.memory_limit = 8MB' ]);
command_ok([ 'pg_checksums', '--disable', '-D', $node->data_dir ], 'a server without checksums');
$node->start;

# A database with everything in it that a topic can hold.
$node->safe_psql('postgres', 'CREATE DATABASE origin');
$node->safe_psql('origin', q{
CREATE EXTENSION narad;
CREATE TABLE effect (consumer_group text, partition int, msg_offset bigint);
SELECT narad.create_topic('dead');
SELECT narad.create_topic('t', partitions => 3, segment_size => '256kB',
	max_in_flight => 100000, max_acked_ahead => 100000);
SELECT narad.create_group('t', 'second');
SELECT narad.create_group('t', 'paused');
SELECT narad.pause_group('t', 'paused');
INSERT INTO t (partition, value) SELECT i % 3, to_jsonb(rpad(i || '.', 700, 'x')) FROM generate_series(0, 2999) i;
BEGIN;
INSERT INTO t (partition, value) SELECT i % 3, '"aborted"' FROM generate_series(0, 99) i;
ROLLBACK;
VACUUM FREEZE t;
SELECT narad.produce('t', '"once"', dedup_id => 'id', partition => 0);
SELECT * FROM narad.produce_once('t', '"counted"', 'producer', 7, partition => 1);
SELECT narad.produce('t', '"later"', deliver_after => '1 day', partition => 2);
SELECT narad.produce('t', to_jsonb(string_agg(md5(i::text), '')), partition => 0) FROM generate_series(1, 20000) i;
-- Every second message of a batch is acked, with an effect; the others come again.
BEGIN;
INSERT INTO effect SELECT 'default', m.partition, m.msg_offset
FROM narad.consume('t', 300, partition => 0) m, LATERAL narad.try_ack(ARRAY[m.receipt]) a WHERE m.msg_offset % 2 = 0;
COMMIT;
-- These are leased, and stay so here only.
SELECT count(*) FROM narad.consume('t', 100, consumer_group => 'second', visibility_timeout => '1 hour');
});

# One line that stands for what a database holds, durably.
my $content = q{
SELECT concat_ws(' ',
	(SELECT count(*) || ' ' || md5(string_agg(partition || ':' || msg_offset || ':' || value, '' ORDER BY partition, msg_offset)) FROM t),
	(SELECT string_agg(concat_ws(':', partition, earliest, end_offset, last_stable), ' ' ORDER BY partition) FROM narad.offsets('t')),
	(SELECT count(*) FROM effect))};

# What a database's consumers get that has no leases: all but what has an effect
# or is not due.
sub is_whole
{
	my ($db, $name, $wanted) = @_;
	is(one_value($node, $content, $db), $wanted, "$name: messages and positions") if defined $wanted;
	is(all_findings($node, $db), '', "$name: verify finds nothing");
	return;
}

sub comes_right
{
	my ($db, $name) = @_;
	is(one_value($node, q{SELECT count(*) FROM narad.leases}, $db), 0, "$name: no lease is left");
	$node->safe_psql($db, q{CREATE TABLE taken (partition int, msg_offset bigint)});
	my $take = q{WITH m AS (INSERT INTO taken SELECT partition, msg_offset
FROM narad.consume('t', 10000, visibility_timeout => '1 hour') RETURNING *) SELECT count(*) FROM m};
	1 while one_value($node, $take, $db) > 0;
	is(one_value($node, q{SELECT count(*) || ' ' || count(*) FILTER (WHERE EXISTS (SELECT FROM effect e
	WHERE e.partition = a.partition AND e.msg_offset = a.msg_offset)) FROM taken a}, $db),
		one_value($node, q{SELECT (SELECT count(*) FROM t) - (SELECT count(*) FROM effect) - 1 || ' 0'}, $db),
		"$name: what was not acked comes, and nothing else");
	is(one_value($node, q{SELECT count(*) FROM narad.consume('t', 100, consumer_group => 'paused')}, $db), 0,
		"$name: a paused group is");
	is(one_value($node, q{SELECT partition || ' ' || msg_offset FROM narad.produce('t', '1', dedup_id => 'id')}, $db),
		one_value($node, q{SELECT partition || ' ' || msg_offset FROM t WHERE value = '"once"'}, $db),
		"$name: a deduplication id is known");
	is(one_value($node, q{SELECT duplicate FROM narad.produce_once('t', '1', 'producer', 7)}, $db), 't',
		"$name: and a producer");
	return;
}

my $before = one_value($node, $content, 'origin');

# ---- pg_checksums ---------------------------------------------------------------

$node->stop;
command_ok([ 'pg_checksums', '--enable', '-D', $node->data_dir ], 'checksums are switched on');
$node->start;
is(one_value($node, 'SHOW data_checksums'), 'on', 'the server says so');
is_whole('origin', 'with checksums', $before);
$node->safe_psql('origin', q{INSERT INTO t (partition, value) SELECT i % 3, to_jsonb(rpad(i || '.', 700, 'x')) FROM generate_series(3000, 3999) i});
$before = one_value($node, $content, 'origin');
$node->stop('immediate');
$node->start;
is_whole('origin', 'with checksums, after a crash', $before);
$node->stop;
command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'every page that recovery left has its checksum');
$node->start;

# ---- copies of a database -----------------------------------------------------------

# The statement may find somebody connected for a moment, which psql's last
# connection may be.
sub at_last
{
	my ($sql, $name) = @_;
	my $error;
	ok(poll_until($name, sub {
		my ($ret, undef, $text) = $node->psql('postgres', $sql);
		$error = $text;
		return $ret == 0 || $error !~ /being accessed by other users/;
	}) && $error !~ /ERROR/, $name) or diag($error);
	return;
}

$node->safe_psql('origin', q{CREATE TABLE held AS SELECT receipt, msg_offset
FROM narad.consume('t', 100, consumer_group => 'second', visibility_timeout => '1 hour', partition => 0)});
my $space = PostgreSQL::Test::Utils::tempdir;
$node->safe_psql('postgres', "CREATE TABLESPACE space LOCATION '$space'");
my %copies = (
	wal_log => 'STRATEGY wal_log',
	file_copy => 'STRATEGY file_copy',
	wal_log_space => 'STRATEGY wal_log TABLESPACE space',
	file_copy_space => 'STRATEGY file_copy TABLESPACE space');
at_last("CREATE DATABASE $_ TEMPLATE origin $copies{$_}", "copied by $copies{$_}") foreach sort keys %copies;
# Of two the copy is only in the WAL yet.
is_whole($_, $_, $before) foreach ('wal_log', 'file_copy');

# A receipt is of the database that gave it, though the copy's topic has the same
# identity: neither acts on the other's leases, whatever has become of the message.
sub accepted
{
	my ($db, $table) = @_;
	return one_value($node, qq{SELECT count(*) FILTER (WHERE accepted) || ' of ' || count(*) || ', ' || coalesce(string_agg(DISTINCT reason, ' '), '-')
FROM narad.try_ack((SELECT array_agg(receipt) FROM $table))}, $db);
}
foreach my $db ('wal_log', 'file_copy')
{
	is(accepted($db, 'held'), '0 of 100, unknown', "$db: receipts of the origin, where there are no leases");
	is(one_value($node, q{CREATE TABLE own AS SELECT receipt, msg_offset
FROM narad.consume('t', 100, consumer_group => 'second', visibility_timeout => '1 hour', partition => 0);
SELECT count(*) FROM own JOIN held USING (msg_offset)}, $db), 100, "$db: the same messages are leased in the copy");
	is(accepted($db, 'held'), '0 of 100, leased_again', "$db: ... receipts of the origin do not settle them");
	my $own = one_value($node, 'SELECT array_agg(receipt) FROM own', $db);
	is(one_value($node, "SELECT count(*) FILTER (WHERE accepted) FROM narad.try_ack('$own')", 'origin'), 0,
		"$db: ... nor its receipts those of the origin");
	is(accepted($db, 'own'), '100 of 100, -', "$db: ... but its own");
	is(accepted($db, 'held'), '0 of 100, settled', "$db: receipts of the origin for what is settled");
}
is(accepted('origin', 'held'), '100 of 100, -', 'in the origin they are good');
$node->stop('immediate');
$node->start;
foreach my $db (sort keys %copies)
{
	is_whole($db, "$db, after a crash", $before);
	comes_right($db, $db);
}
# They are apart.
$node->safe_psql($_, qq{INSERT INTO t (partition, value) SELECT 0, to_jsonb('of $_'::text) FROM generate_series(1, 100) i})
  foreach sort keys %copies;
foreach my $db (sort keys %copies)
{
	is(one_value($node, q{SELECT string_agg(DISTINCT value::text, ' ') FROM narad.consume('t', 10000)
WHERE value::text LIKE '"of %'}, $db), qq{"of $db"}, "$db has its own messages");
	is_whole($db, "$db, in use");
}
is_whole('origin', 'the origin', $before);
$node->safe_psql('postgres', "DROP DATABASE $_") foreach sort keys %copies;

# ---- ALTER DATABASE ... SET TABLESPACE --------------------------------------------------

# To and fro: each time the files are others, and later the first ones again.
my $receipt = one_value($node, q{SELECT receipt FROM narad.consume('t', 1, partition => 1, visibility_timeout => '1 hour')}, 'origin');
my $end = one_value($node, q{SELECT end_offset FROM narad.offsets('t') WHERE partition = 1}, 'origin');
$node->safe_psql('origin', q{SELECT narad.create_group('t', 'mover', 'latest')});
foreach my $round (1 .. 6)
{
	my $where = $round % 2 ? 'space' : 'pg_default';
	at_last("ALTER DATABASE origin SET TABLESPACE $where", "moved to $where, $round");
	is(one_value($node, q{SELECT string_agg(msg_offset::text, ' ') FROM
(SELECT (narad.produce('t', to_jsonb(i), partition => 1)).msg_offset FROM generate_series(1, 3) i) p}, 'origin'),
		join(' ', $end, $end + 1, $end + 2), 'offsets go on');
	is(one_value($node, q{SELECT string_agg(msg_offset::text, ' ' ORDER BY msg_offset) FROM narad.consume('t', 10, consumer_group => 'mover')
WHERE narad.ack(receipt) IS NOT NULL}, 'origin'), join(' ', $end, $end + 1, $end + 2), 'a group goes on there');
	$end += 3;
	is_whole('origin', "moved, $round");
}
is(one_value($node, q{SELECT count(*) || ' ' || count(DISTINCT msg_offset) FROM t WHERE value::text ~ '^[0-9]+$' AND partition = 1}, 'origin'),
	'18 18', 'all messages are there');
my ($ret, $out, $error) = $node->psql('postgres', 'ALTER DATABASE origin SET TABLESPACE pg_default');
is($ret, 0, 'moved to where it is') or diag($error);
($ret, $out, $error) = $node->psql('postgres', 'ALTER DATABASE origin SET TABLESPACE nowhere');
like($error, qr/tablespace "nowhere" does not exist/, 'moved to nowhere');
is(one_value($node, "SELECT accepted FROM narad.try_ack(ARRAY['$receipt'])", 'origin'), 't',
	'a lease from before all that is good');
at_last('ALTER DATABASE origin SET TABLESPACE space', 'moved once more');
$before = one_value($node, $content, 'origin');
$node->stop('immediate');
$node->start;
is_whole('origin', 'moved, then crashed', $before);

# ---- topics in tablespaces ------------------------------------------------------------------

my $other = PostgreSQL::Test::Utils::tempdir;
$node->safe_psql('postgres', "CREATE TABLESPACE other LOCATION '$other'");
$node->safe_psql('origin', q{
SET default_tablespace = other;
SELECT narad.create_topic('spaced', segment_size => '256kB');
INSERT INTO spaced (value) SELECT to_jsonb(rpad(i || '.', 700, 'x')) FROM generate_series(0, 999) i;
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('spaced', 100);
});
is(one_value($node, q{SELECT spcname FROM pg_class c JOIN pg_tablespace s ON s.oid = c.reltablespace WHERE relname = 'spaced'}, 'origin'),
	'other', 'a topic is made where default_tablespace says');
($ret, $out, $error) = $node->psql('postgres', 'DROP TABLESPACE other');
like($error, qr/tablespace "other" is not empty/, 'a tablespace with a topic is not dropped');
$node->safe_psql('origin', q{ALTER TABLE spaced SET TABLESPACE pg_default; INSERT INTO spaced (value) VALUES ('"1000."')});
$node->stop('immediate');
$node->start;
is(one_value($node, q{SELECT count(*) || ' ' || min(msg_offset) || ' ' || max(msg_offset) FROM narad.consume('spaced', 10000)}, 'origin'),
	'901 100 1000', 'a topic that was moved, after a crash') ;
$node->safe_psql('origin', q{ALTER TABLE ALL IN TABLESPACE pg_default SET TABLESPACE other; SELECT narad.drop_topic('spaced');
ALTER TABLE ALL IN TABLESPACE other SET TABLESPACE pg_default});
is(all_findings($node, 'origin'), '', 'all were moved together: verify finds nothing');
ok(poll_until('the tablespace is dropped', sub {
	$node->safe_psql('postgres', 'CHECKPOINT');
	($ret, $out, $error) = $node->psql('postgres', 'DROP TABLESPACE other');
	return $ret == 0;
}), 'a tablespace whose topics are gone is dropped') or diag($error);

# ---- DROP EXTENSION ----------------------------------------------------------------------------

my $s = narad_session($node, 'origin');
is($s->try('DROP EXTENSION narad'), '2BP01', 'an extension with topics is not dropped');
is_whole('origin', 'and that changes nothing');
# With somebody waiting for messages, in each of the ways there are.
my @waiting = map { narad_session($node, 'origin') } (0 .. 2);
my @pids = map { $_->backend_pid } @waiting;
$waiting[0]->send(q{SELECT * FROM narad.consume('dead', wait => '60 s')});
$waiting[1]->send(q{CALL narad.wait('dead', '60 s')});
$waiting[2]->send(q{SELECT * FROM narad.fetch('dead', 0, 0, wait => '60 s')});
ok($node->poll_query_until('postgres', 'SELECT count(*) = 3 FROM pg_stat_activity WHERE wait_event_type = \'Extension\' AND pid IN ('
	  . join(',', @pids) . ')'), 'three wait for messages');
is($s->try('DROP EXTENSION narad CASCADE'), '00000', 'CASCADE drops it') or diag($s->{error});
foreach my $w (@waiting)
{
	is($w->finish, '42P01', 'who waited is told that the topic was dropped') or diag($w->{error});
	$w->quit;
}
is($s->value(q{SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'narad' OR c.relname IN ('t', 'dead')}), 0, 'no table, view or topic is left');
is($s->value(q{SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'narad'}), 0, 'no function');
is($s->value(q{SELECT count(*) FROM pg_am WHERE amname = 'narad'}), 0, 'no access method');
is($s->value(q{SELECT count(*) FROM pg_event_trigger}), 0, 'no event trigger');
is($s->value('SELECT count(*) > 0 FROM effect'), 't', 'other tables are');
is($s->try('CREATE EXTENSION narad'), '00000', 'it can be made again') or diag($s->{error});
is($s->value('SELECT count(*) FROM narad.groups'), 0, 'without groups');
is($s->value('SELECT count(*) FROM narad.topics'), 0, 'or topics');
$s->quit;

# Nothing stays in memory: leases fill most of it each time.
my $fill = q{
CREATE EXTENSION narad;
SELECT narad.create_topic('fill', max_in_flight => 1000000);
INSERT INTO fill (value) SELECT to_jsonb(i) FROM generate_series(1, 12000) i};
$s = narad_session($node, 'origin');
$s->rows('DROP EXTENSION narad CASCADE');
foreach my $round (1 .. 5)
{
	$s->rows($fill);
	is($s->value(q{SELECT count(*) FROM narad.consume('fill', 12000)}), 12000, "leases in memory, $round");
	$s->rows('DROP EXTENSION narad CASCADE');
}
$s->quit;

# ---- DROP DATABASE -----------------------------------------------------------------------------

# Whatever its worker is at, and whoever waits in it.
my $admin = narad_session($node);
foreach my $round (1 .. 6)
{
	my $force = $round % 2 ? '' : ' WITH (FORCE)';
	$admin->rows('CREATE DATABASE victim');
	my $user = narad_session($node, 'victim');
	$user->rows($fill);
	$user->rows(q{SELECT count(*) FROM narad.consume('fill', 12000)});
	$user->rows(q{SELECT narad.produce('fill', '1')});
	$user->rows(q{SELECT narad.ack(array_agg(receipt)) FROM narad.consume('fill', 12000)});
	if ($force)
	{
		$user->backend_pid;
		$user->send(q{SELECT * FROM narad.consume('fill', wait => '60 s')});
	}
	else
	{
		$user->quit;
	}
	my $state;
	ok(poll_until('the database is dropped', sub {
		$state = $admin->try("DROP DATABASE victim$force", 60);
		return ($state // '') ne '55006';	# the session that just left
	}), "DROP DATABASE$force, $round");
	is($state, '00000', 'succeeds') or diag($admin->{error});
	$user->quit;
}

# Its worker is held in the middle of a move, whatever it is told.
if ($ENV{NARAD_TESTING})
{
	$node->safe_psql('postgres', slurp_file("$ENV{NARAD_INPUTS}/test/narad_test/narad_test.sql"));
	$admin->rows('CREATE DATABASE victim');
	$admin->rows(q{SELECT narad_test.stop_arm_any('move-claimed')});
	$node->safe_psql('victim', q{
CREATE EXTENSION narad;
SELECT narad.create_topic('dead');
SELECT narad.create_topic('t', max_deliveries => 1, dead_letter_topic => 'dead');
SELECT narad.produce('t', '1');
SELECT narad.nack(receipt) FROM narad.consume('t');
});
	$admin->rows(q{SELECT narad_test.stop_wait('move-claimed')});
	my $state = $admin->try('DROP DATABASE victim', 60);
	like($state, qr/^(00000|55006)$/, 'DROP DATABASE while the worker does not listen: it says so, or succeeds');
	$admin->rows(q{SELECT narad_test.stop_release('move-claimed')});
	if ($state ne '00000')
	{
		is(one_value($node, q{SELECT count(*) FROM t}, 'victim'), 1, 'the database is as it was');
		at_last('DROP DATABASE victim', 'and later it is dropped');
	}
}
$admin->quit;
is(one_value($node, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'narad worker' AND datname IS NULL}), 0,
	'no worker is left without a database');
$node->stop;
command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'checksums at the end');
logs_are_clean('databases', $node);
done_testing();
