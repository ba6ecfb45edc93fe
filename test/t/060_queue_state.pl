# Copyright (c) 2026, the Narad authors
#
# I1: in doubt (damage, another log's page) a group starts earlier, and says so.
# I5: what a transaction acked stands with its commit, however many ranges it
#     has, however many transactions journal at once, and with no worker.
# I6: settled messages stay settled however large the state is; a damaged one
#     is replaced by the next write.
# I12: of a topic that is gone nothing is left, however it went.
#
# Memory and disk stay bounded whatever is made and dropped; when memory is
# used up, what frees it still works.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";
use Time::HiRes qw(time);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('state', conf => [ 'autovacuum = off',
	'max_prepared_transactions = 64', 'max_worker_processes = 16',
	'allow_in_place_tablespaces = on' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad; CREATE TABLE effect (off bigint);');

# A topic with messages 0 .. $n - 1.
sub fresh_topic
{
	my ($t, $n, $more) = @_;
	$more ||= '';
	$node->safe_psql('postgres', "SELECT narad.create_topic('$t', visibility_timeout => '10 min'"
		  . ", max_in_flight => 1000000, max_acked_ahead => 1000000$more);"
		  . " SELECT count(*) FROM narad.produce_batch('$t',"
		  . " ARRAY(SELECT to_jsonb(i) FROM generate_series(0, $n - 1) i))");
	return;
}

# Leases all there is into a table of receipts of that name.
sub take_all
{
	my ($s, $t, $group) = @_;
	$group ||= 'default';
	$s->rows("DROP TABLE IF EXISTS r_$t; CREATE TABLE r_$t (receipt text, off bigint, deliveries int)");
	while ($s->value("WITH m AS (INSERT INTO r_$t SELECT receipt, msg_offset, deliveries FROM"
		  . " narad.consume('$t', 1000, consumer_group => '$group') RETURNING 1) SELECT count(*) FROM m"))
	{
	}
	return;
}

# Acks in a transaction of its own that writes nothing else.
sub ack_where
{
	my ($s, $t, $where) = @_;
	return $s->rows("SELECT narad.ack(array_agg(receipt)) FROM r_$t WHERE $where");
}

# The offsets that come, in order.
sub comes
{
	my ($t, $max) = @_;
	$max ||= 1000;
	return one_value($node, "SELECT coalesce(string_agg(msg_offset::text, ' ' ORDER BY msg_offset), '')"
		  . " FROM narad.consume('$t', $max)");
}

sub is_written
{
	my ($t) = @_;
	return one_value($node, 'SELECT coalesce(sum(unpersisted_ranges), 1) FROM narad.groups'
		  . " WHERE topic = '$t'::regclass") eq '0';
}

# Until the acks so far would survive a crash.
sub wait_until_durable
{
	my ($t) = @_;
	return poll_until("acks of $t are durable", sub {
		return 0 unless is_written($t);
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

sub size_of
{
	my ($t) = @_;
	return one_value($node, "SELECT pg_relation_size('$t')");
}

sub error_of
{
	my ($sql, $db) = @_;
	my ($ret, undef, $errors) = $node->psql($db || 'postgres', $sql);
	return $ret == 0 ? '' : $errors;
}

# ---- images that do not fit on a page ------------------------------------

{
	my $s = narad_session($node);
	my $name = 'an image larger than a page';
	fresh_topic('large', 40000);
	take_all($s, 'large');
	foreach my $round (0 .. 2)
	{
		ack_where($s, 'large', "off % 4 = $round");
		ok(wait_until_durable('large'), "$name is written ($round)");
		$s->quit;
		crash();
		$s = narad_session($node);
		take_all($s, 'large');
		is($s->value("SELECT count(*) || ' ' || count(*) FILTER (WHERE off % 4 <= $round) FROM r_large"),
			10000 * (3 - $round) . ' 0', "$name stands after a crash ($round)");
	}
	ack_where($s, 'large', 'true');
	ok(wait_until_durable('large'), 'the rest is acked');
	is($s->value("SELECT frontier FROM narad.groups WHERE topic = 'large'::regclass"), '39999',
		'and the frontier is at the end');
	$s->quit;
	crash();
	is(comes('large'), '', 'nothing comes again');
}

# How large the state is, depends on how many ranges there are, not on how long.
{
	my $s = narad_session($node);
	my (%npages, %nranges);
	fresh_topic('hole', 100001);
	my ($kept) = $s->rows("SELECT receipt, msg_offset FROM narad.consume('hole')");
	is($kept->[1], 0, 'the first message is leased, and stays so');
	foreach my $round (1 .. 10)
	{
		$s->rows("SELECT narad.ack(array_agg(receipt)) FROM narad.consume('hole', 10000)");
		poll_until('the acks are written', sub { is_written('hole') });
		$s->rows('CHECKPOINT');
		$nranges{ $s->value("SELECT frontier || ' ' || acked_ahead_ranges || ' ' || in_flight FROM narad.groups"
			  . " WHERE topic = 'hole'::regclass") }++;
		my $n = 0;
		edit_state_pages(file_of('hole'), sub { $n++; return });
		$npages{$n}++;
	}
	is(join(', ', keys %nranges), '-1 1 1', '100000 acks ahead of it are one range, all the time');
	is(join(', ', keys %npages), '1', 'on one page');
	is($s->try("SELECT narad.extend('$kept->[0]', '1 hour')"), '00000', 'its lease is live');
	ok(wait_until_durable('hole'), 'the acks are durable');
	$s->quit;
	crash();
	is(one_value($node, "SELECT msg_offset, (SELECT frontier || ' ' || acked_ahead_ranges FROM narad.groups"
		  . " WHERE topic = 'hole'::regclass) FROM narad.consume('hole', 1000)"), '0|-1 1',
		'after a crash that message comes again, and no other');
}

# The pages of a dropped group's state serve the next one.
{
	my $s = narad_session($node);
	my @sizes;
	fresh_topic('reused', 6000);
	foreach my $round (1 .. 6)
	{
		$s->rows("SELECT narad.create_group('reused', 'g$round')");
		take_all($s, 'reused', "g$round");
		ack_where($s, 'reused', 'off % 2 = 0 AND off < 3000');
		wait_until_durable('reused');
		ack_where($s, 'reused', 'off % 2 = 0 AND off >= 3000');
		wait_until_durable('reused');

		# Ranges that fill several journal pages, in a writing transaction.
		$s->rows('BEGIN');
		$s->rows("INSERT INTO effect VALUES ($round)");
		ack_where($s, 'reused', 'off % 4 = 1');
		$s->rows('COMMIT');
		wait_until_durable('reused');
		$s->rows("SELECT narad.drop_group('reused', 'g$round')");
		push @sizes, size_of('reused');
	}
	is($sizes[5], $sizes[1], 'state pages of dropped groups are used again');
	$s->quit;
}

# A large image is not written again for each change: 200,000 counts are 3.2 MB,
# which takes 1.6 s at 2 MB a second, be it the worker's turn or that of commits
# whose acks do not fit on the head page.  However slow the server is, it writes
# no more than that in the time it took.
{
	my $s = narad_session($node);
	fresh_topic('paced', 200000);
	take_all($s, 'paced');
	$s->rows('SELECT narad.nack(array_agg(receipt)) FROM r_paced');
	$node->safe_psql('postgres', q{ALTER SYSTEM SET narad.frontier_write_interval = '10ms';
		ALTER SYSTEM SET narad.frontier_flush_interval = '60s'; SELECT pg_reload_conf()});
	ok(poll_until('paced: the image is written', sub { is_written('paced') }), 'paced: the counts are written');
	my %some = (plain => 'FOR i IN 1 .. 20000 LOOP
			PERFORM narad.ack(receipt) FROM narad.consume(\'paced\'); COMMIT; END LOOP',
		transactional => 'FOR i IN 1 .. 5000 LOOP
			SELECT receipt, msg_offset INTO m FROM narad.consume(\'paced\');
			INSERT INTO paced_effect VALUES (m.msg_offset); PERFORM narad.ack(m.receipt); COMMIT; END LOOP');
	$s->rows('CREATE TABLE paced_effect (off bigint)');
	foreach my $kind (qw(plain transactional))
	{
		my ($begin, $lsn) = (time, $s->value('SELECT pg_current_wal_insert_lsn()'));
		$s->rows("SET synchronous_commit = off; DO \$\$ DECLARE m record; BEGIN $some{$kind}; END \$\$");
		my $wal = $s->value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '$lsn')");
		cmp_ok($wal, '<', 2 * 3200000 * ((time - $begin) / 1.6 + 2), "paced: WAL of many $kind acks");
	}
	$s->quit;
	flush_wal($node);
	crash();
	$s = narad_session($node);
	take_all($s, 'paced');
	is($s->value('SELECT count(*) FROM paced_effect'), 5000, 'paced: the effects are there after a crash');
	is($s->value('SELECT count(*) FROM paced_effect JOIN r_paced USING (off)'), 0,
		'paced: what was acked with its effect does not come again');
	is($s->value(q{SELECT count(*) FROM r_paced WHERE deliveries < 2}), 0, 'paced: and the counts are there');
	$node->safe_psql('postgres', q{ALTER SYSTEM RESET narad.frontier_write_interval;
		ALTER SYSTEM RESET narad.frontier_flush_interval; SELECT pg_reload_conf()});
	$s->quit;
}

# ---- the journal ---------------------------------------------------------

{
	my $s = narad_session($node);
	my @sizes;
	fresh_topic('ranges', 9000);
	take_all($s, 'ranges');
	foreach my $round (0 .. 2)
	{
		$s->rows('BEGIN');
		$s->rows("INSERT INTO effect VALUES (1000 + $round)");
		ack_where($s, 'ranges', "off % 2 = 0 AND off / 3000 = $round");
		$s->rows('COMMIT');
		if ($round < 2)
		{
			wait_until_durable('ranges');
			push @sizes, size_of('ranges');
		}
	}
	crash();
	$s->quit;
	$s = narad_session($node);
	take_all($s, 'ranges');
	is($s->value('SELECT count(*) || \' \' || count(*) FILTER (WHERE off % 2 = 0) FROM r_ranges'),
		'4500 0', '1500 ranges acked in one transaction stand after a crash right behind its commit');
	is($sizes[1], $sizes[0], 'and the journal\'s pages are used again');
	$s->quit;
}

SKIP:
{
	skip 'needs stop points', 6 unless $ENV{NARAD_TESTING};
	foreach my $sql ("stop_arm(text) RETURNS void AS '\$libdir/narad', 'narad_stop_arm'",
		"stop_release(text) RETURNS void AS '\$libdir/narad', 'narad_stop_release'",
		"stop_waiting(text) RETURNS integer AS '\$libdir/narad', 'narad_stop_waiting'")
	{
		$node->safe_psql('postgres', "CREATE FUNCTION $sql LANGUAGE C STRICT");
	}
	my $s = narad_session($node);
	fresh_topic('open', 2400);
	foreach my $end ('crash', 'commit')
	{
		take_all($s, 'open');
		my @open = map { narad_session($node) } 1 .. 12;
		$s->rows("SELECT stop_arm('commit-journalled')");
		foreach my $i (0 .. 11)
		{
			$open[$i]->rows('BEGIN');
			$open[$i]->rows("INSERT INTO effect VALUES (2000 + $i)");
			ack_where($open[$i], 'open', "off % 24 = 2 * $i");
			$open[$i]->send('COMMIT');
		}
		ok(poll_until('all have journalled', sub { $s->value("SELECT stop_waiting('commit-journalled')") == 12 }),
			"twelve transactions have their acks in the journal ($end)");
		$s->rows('CHECKPOINT');
		if ($end eq 'commit')
		{
			$s->rows("SELECT stop_release('commit-journalled')");
			is(join(' ', map { $_->finish } @open), join(' ', ('00000') x 12), 'they commit');
		}
		$s->quit;
		crash();
		$_->quit foreach @open;
		$s = narad_session($node);
		take_all($s, 'open');
		is($s->value('SELECT count(*) FROM r_open'), $end eq 'commit' ? '1200' : '2400',
			$end eq 'commit' ? 'their acks stand' : 'acks of transactions that never committed are void');
		$s->quit;
		crash();
		$s = narad_session($node);
	}

	# create_group that fails in the middle leaves none.
	fresh_topic('half', 8, ', partitions => 4');
	$s->rows("SELECT stop_arm('group-start')");
	is($s->try("SELECT narad.create_group('half', 'late', 'latest')"), 'XX000', 'create_group fails half way');
	is($s->try("SELECT narad.consume('half', consumer_group => 'late')"), '42704', 'there is no such group');
	$s->rows("SELECT stop_release('group-start')");
	crash();
	$s->quit;
	$s = narad_session($node);
	$s->rows("SELECT narad.create_group('half', 'late', 'latest')");
	is($s->value("SELECT count(*) FROM narad.consume('half', 10, consumer_group => 'late')"), '0',
		'made again, it starts at the latest message');
	is($s->value("SELECT count(*) FROM narad.groups WHERE topic = 'half'::regclass"), '4', 'and is there once');
	$s->quit;
}

# ---- what survives a clean restart ---------------------------------------

{
	my $s = narad_session($node);
	fresh_topic('counts', 4);
	take_all($s, 'counts');
	$s->rows("SELECT narad.nack(receipt) FROM r_counts WHERE off < 2");
	$s->rows("DROP TABLE r_counts");
	take_all($s, 'counts');
	$s->rows("SELECT narad.nack(receipt) FROM r_counts WHERE off = 1");
	$s->quit;
	$node->restart;
	is(one_value($node, "SELECT string_agg(msg_offset || '.' || deliveries, ' ' ORDER BY msg_offset)"
		  . " FROM narad.consume('counts', 10)"), '0.3 1.3 2.1 3.1',
		'delivery counts of messages that came back survive a clean restart');
}

# Whatever the intervals, a locked topic is waited for, too.
{
	$node->append_conf('postgresql.conf', "narad.frontier_write_interval = '10s'");
	$node->restart;
	fresh_topic('locked', 6);
	my $s = narad_session($node);
	my $locker = narad_session($node);
	take_all($s, 'locked');
	ack_where($s, 'locked', 'off < 4');
	$s->quit;
	$locker->rows('BEGIN');
	$locker->rows('LOCK TABLE locked');
	$node->stop('fast');
	$locker->quit;
	$node->start;
	is(comes('locked'), '4 5', 'a clean stop writes the state of a topic that was locked');

	# The flush interval is a promise, and the write interval is not in its way.
	my $start = time();
	$node->append_conf('postgresql.conf', "narad.frontier_flush_interval = '50ms'");
	$node->reload;
	fresh_topic('prompt', 2);
	$node->safe_psql('postgres', "SELECT narad.ack(receipt) FROM narad.consume('prompt')");
	ok(wait_until_durable('prompt'), 'acks are flushed');
	cmp_ok(time() - $start, '<', 9, 'within a flush interval shorter than the write interval');
	$node->adjust_conf('postgresql.conf', 'narad.frontier_flush_interval', undef);
	$node->adjust_conf('postgresql.conf', 'narad.frontier_write_interval', undef);
	$node->restart;
}

# ---- topics that go ------------------------------------------------------

# Each in a database of its own name, in which nobody else is: its worker is at
# rest if nothing is counted there.
sub is_at_rest
{
	my ($db) = @_;
	my ($count, $since) = ('', 0);
	return poll_until("nothing happens in $db", sub {
		my $now = one_value($node, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '$db'");
		($count, $since) = ($now, time()) if $now ne $count;
		return time() - $since > 3;
	});
}

{
	$node->safe_psql('postgres', q{CREATE TABLESPACE elsewhere LOCATION ''});
	$node->append_conf('postgresql.conf', "narad.frontier_write_interval = '500ms'");
	$node->reload;
	my $n = 0;
	foreach my $way (
		[ 'DROP', 'DROP TABLE t' ],
		[ 'TRUNCATE', 'TRUNCATE t' ],
		[ 'SET TABLESPACE and DROP', 'BEGIN; ALTER TABLE t SET TABLESPACE elsewhere; DROP TABLE t; COMMIT' ],
		[ 'SET TABLESPACE rolled back, and DROP',
			'BEGIN; SAVEPOINT a; ALTER TABLE t SET TABLESPACE elsewhere; ROLLBACK TO a; DROP TABLE t; COMMIT' ])
	{
		my ($name, @sql) = @$way;
		my $db = 'gone' . ++$n;
		$node->safe_psql('postgres', "CREATE DATABASE $db");
		$node->safe_psql($db, q{
CREATE EXTENSION narad;
SELECT narad.create_topic('t');
SELECT narad.produce('t', '1');
SELECT narad.produce('t', '2');
});
		$node->safe_psql($db, join(';', q{SELECT narad.ack(receipt) FROM narad.consume('t')}, @sql));
		ok(is_at_rest($db), "$name: the worker has nothing to do any more");
		$node->safe_psql('postgres', "DROP DATABASE $db");
	}

	fresh_topic('moved', 4);
	my $s = narad_session($node);
	take_all($s, 'moved');
	$s->rows('BEGIN; SAVEPOINT a; ALTER TABLE moved SET TABLESPACE elsewhere; ROLLBACK TO a; COMMIT');
	ack_where($s, 'moved', 'off = 0');
	$s->rows('ALTER TABLE moved SET TABLESPACE elsewhere');
	ack_where($s, 'moved', 'off = 1');
	$s->rows('BEGIN; ALTER TABLE moved SET TABLESPACE pg_default; SAVEPOINT a;'
		  . ' ALTER TABLE moved SET TABLESPACE elsewhere; ROLLBACK TO a; COMMIT');
	ack_where($s, 'moved', 'off = 2');
	$s->rows('BEGIN; ALTER TABLE moved SET TABLESPACE elsewhere; ROLLBACK');
	ack_where($s, 'moved', 'off = 3');
	$s->quit;
	$node->restart;
	is(comes('moved'), '', 'leases outlive every SET TABLESPACE, done or not');
	$node->adjust_conf('postgresql.conf', 'narad.frontier_write_interval', undef);
	$node->restart;
}

# A database that allows no connections keeps its worker.
{
	$node->safe_psql('postgres', 'CREATE DATABASE closed');
	$node->safe_psql('closed', q{
CREATE EXTENSION narad;
SELECT narad.create_topic('t');
SELECT narad.produce('t', '1');
SELECT narad.ack(receipt) FROM narad.consume('t');
});
	my $of = q{FROM pg_stat_activity WHERE backend_type = 'narad worker' AND datname = 'closed'};
	$node->poll_query_until('postgres', "SELECT count(*) = 1 $of");
	my $offset = -s $node->logfile;
	my $pid = one_value($node, "SELECT pid $of");
	$node->safe_psql('postgres', 'ALTER DATABASE closed ALLOW_CONNECTIONS false');
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	ok($node->poll_query_until('postgres', "SELECT count(*) = 1 $of AND pid <> $pid"),
		'a database that allows no connections has a worker again');
	unlike(slurp_file($node->logfile, $offset), qr/FATAL:.*not currently accepting/,
		'which had no difficulty to connect');
	$node->safe_psql('postgres', 'DROP DATABASE closed');
}

# ---- prepared transactions -----------------------------------------------

{
	my $s = narad_session($node);
	fresh_topic('prepared', 3);
	$s->rows('BEGIN');
	take_all($s, 'prepared');
	$s->rows("PREPARE TRANSACTION 'takes'");
	is(comes('prepared'), '', 'leases of a prepared transaction hold');
	is(one_value($node, q{SELECT count(*) FROM narad.leases WHERE topic = 'prepared'::regclass AND expires_at > now()}),
		'3', 'and have their expiry');
	$s->rows("COMMIT PREPARED 'takes'");
	is(comes('prepared'), '', 'after its commit, too');
	is($s->try("SELECT narad.ack(array_agg(receipt)) FROM r_prepared"), '00000', 'and can be acked');

	foreach my $i (1 .. 40)
	{
		$s->rows("BEGIN; SELECT narad.produce('prepared', '\"p$i\"'); PREPARE TRANSACTION 'p$i'");
	}
	is(comes('prepared'), '', 'messages of prepared transactions are not delivered');
	$s->rows("COMMIT PREPARED 'p38'");
	is(one_value($node, "SELECT string_agg(value::text, ' ') FROM narad.consume('prepared', 100)"), '"p38"',
		'of forty the thirty-eighth is delivered at its commit');
	$s->rows("ROLLBACK PREPARED 'p3'");
	$s->rows("COMMIT PREPARED 'p40'");
	$s->rows("COMMIT PREPARED 'p1'");
	is(one_value($node, "SELECT string_agg(value::text, ' ') FROM narad.consume('prepared', 100)"), '"p1" "p40"',
		'and others at theirs');
	$s->quit;
	crash();
	$s = narad_session($node);
	is(one_value($node, "SELECT string_agg(value::text, ' ' ORDER BY msg_offset) FROM narad.consume('prepared', 100)"),
		'"p1" "p38" "p40"', 'after a crash those come that were committed');
	$s->rows("COMMIT PREPARED 'p$_'") foreach (2, 4 .. 37, 39);
	is(one_value($node, "SELECT count(*) FROM narad.consume('prepared', 100)"), '36', 'then the rest');
	$s->quit;
}

# ---- damage --------------------------------------------------------------

# Calls code with each state page of a topic that begins with a head, of a
# stopped server; it edits the page.
sub edit_state_pages
{
	my ($file, $code) = @_;
	my $n = 0;
	open(my $fh, '+<:raw', $file) or die "$file: $!";
	while (sysread($fh, my $page, 8192) == 8192)
	{
		# The special space: topic id, kind, version, partition.
		next if unpack('S', substr($page, 8192 - 16 + 8, 2)) != 0x4e06;
		my $edited = $code->($page);
		next unless defined $edited;
		sysseek($fh, -8192, 1);
		syswrite($fh, $edited);
		$n++;
	}
	close($fh);
	return $n;
}

sub file_of
{
	my ($t) = @_;
	return $node->data_dir . '/' . one_value($node, "SELECT pg_relation_filepath('$t')");
}

my $clean_from;

# Of a group that is in use the page is damaged, or gone, when next an ack with an
# effect is journalled on it.  The worker is not in time to write the page.
{
	my %damage = (
		flipped => sub { my $p = shift; substr($p, 4000, 8) ^= "\xff" x 8; return $p; },
		zeroed => sub { return "\0" x 8192; });
	my $s = narad_session($node);
	foreach my $t (sort keys %damage)
	{
		fresh_topic($t, 6);
		take_all($s, $t);
		ack_where($s, $t, 'off < 2');
	}
	$s->quit;
	$node->append_conf('postgresql.conf', "narad.frontier_write_interval = '10s'");
	$node->restart;
	log_is_clean($node, 'so far the log tells of no crash');
	$s = narad_session($node);
	my $offset = -s $node->logfile;
	foreach my $t (sort keys %damage)
	{
		take_all($s, $t);
		is(edit_state_pages(file_of($t), $damage{$t}), 1, "$t: a state page is damaged under a group in use");
		foreach my $off (3, 4)
		{
			$s->rows('BEGIN');
			$s->rows("INSERT INTO effect VALUES (3000 + $off)");
			ack_where($s, $t, "off = $off");
			is($s->try('COMMIT'), '00000', "$t: acks with an effect go on ($off)");
		}
	}
	my $log = slurp_file($node->logfile, $offset);
	like($log, qr/WARNING:  invalid page in block \d+ of relation .*; zeroing out page/, 'flipped: the page was read then');
	unlike($log, qr/PANIC:|TRAP:/, 'the server stayed up');
	$s->quit;
	$clean_from = -s $node->logfile;
	$node->adjust_conf('postgresql.conf', 'narad.frontier_write_interval', undef);
	crash();
	is(comes($_), '2 5', "$_: and stand, as do those before") foreach sort keys %damage;
}

{
	my $s = narad_session($node);
	fresh_topic('damaged', 5);
	fresh_topic('beyond', 5);
	fresh_topic('upper', 5);
	foreach my $t ('damaged', 'beyond', 'upper')
	{
		take_all($s, $t);
		ack_where($s, $t, 'off < 3');
	}
	my ($damaged, $beyond, $upper) = map { file_of($_) } ('damaged', 'beyond', 'upper');
	$s->quit;
	$node->stop;
	is(edit_state_pages($damaged, sub { my $p = shift; substr($p, 30, 20) = 'x' x 20; return $p; }), 1,
		'a state page is damaged');
	command_ok([ 'pg_checksums', '--disable', '-D', $node->data_dir ], 'checksums are switched off');
	is(edit_state_pages($beyond, sub { my $p = shift; substr($p, 24 + 16, 8) = pack('Q', 1000); return $p; }), 1,
		'and a frontier is set beyond the end');
	is(edit_state_pages($upper, sub { my $p = shift; substr($p, 14, 2) = pack('S', unpack('S', substr($p, 12, 2)) + 8); return $p; }), 1,
		'and one says that it has less room than it has');

	# With checksums off the bytes that were damaged have to be seen by themselves.
	my $offset = -s $node->logfile;
	$node->start;
	my (undef, $out, $errors) = $node->psql('postgres',
		"SELECT string_agg(msg_offset::text, ' ' ORDER BY msg_offset) FROM narad.consume('damaged', 10)");
	is($out, '3 4', 'a group whose state page is damaged starts where it was saved');
	like($errors, qr/WARNING:  state page of group "default" in partition 0 of topic "damaged" is damaged.*saved frontier, offset 3/s,
		'with a warning');
	is(comes('beyond'), '0 1 2 3 4', 'a group whose frontier lies beyond the end starts there, too');
	like(slurp_file($node->logfile, $offset), qr/LOG:  frontier of group "default" .* lies beyond/, 'and that is logged');
	$s = narad_session($node);
	is($s->value('SELECT count(*) FROM effect WHERE off = 1'), '1', 'the server is up');
	take_all($s, 'upper');
	foreach my $off (3, 4)
	{
		$s->rows('BEGIN');
		$s->rows("INSERT INTO effect VALUES (4000 + $off)");
		ack_where($s, 'upper', "off = $off");
		is($s->try('COMMIT'), '00000', "acks with an effect are not written past a page's room ($off)");
	}
	$s->rows('CHECKPOINT');
	$s->quit;
	crash();
	is(comes('upper'), '', 'and stand');
	$node->restart;
	$s = narad_session($node);
	foreach my $t ('damaged', 'beyond')
	{
		take_all($s, $t);
		ack_where($s, $t, $t eq 'damaged' ? 'off = 3' : 'off < 2');
	}
	$s->quit;
	$node->restart;
	is(comes('damaged'), '4', 'the next write has replaced the damaged page');
	is(comes('beyond'), '2 3 4', 'and the one from beyond');
	$node->stop;
	command_ok([ 'pg_checksums', '--enable', '-D', $node->data_dir ], 'checksums are on again');
	$node->start;
	my $file = file_of('damaged');
	$node->safe_psql('postgres', 'DELETE FROM narad.saved_frontiers');
	$node->stop;
	is(edit_state_pages($file, sub { my $p = shift; substr($p, 8000, 20) = 'x' x 20; return $p; }), 1,
		'a page is damaged where only its checksum tells');
	$node->start;
	(undef, $out, $errors) = $node->psql('postgres',
		"SELECT string_agg(msg_offset::text, ' ' ORDER BY msg_offset) FROM narad.consume('damaged', 10)");
	is($out, '0 1 2 3 4', 'a group that was not saved starts at the earliest message');
	like($errors, qr/WARNING:  state page of group/, 'with a warning');
	is(error_of("SELECT narad.ack(array_agg(receipt)) FROM narad.consume('beyond', 3)"), '', 'others work');
}
$node->stop;
log_is_clean($node, 'the log tells of no crash', offset => $clean_from);

# ---- no worker -----------------------------------------------------------

$node = narad_node('alone', conf => [ 'max_worker_processes = 1', 'autovacuum = off' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad');
{
	my $s = narad_session($node);
	fresh_topic('alone', 20);
	take_all($s, 'alone');
	is($s->value(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'narad worker'}), '0', 'there is no worker');
	ack_where($s, 'alone', 'off < 5');
	$s->quit;
	$node->restart;
	$s = narad_session($node);
	take_all($s, 'alone');
	is($s->value('SELECT min(off) || \' \' || count(*) FROM r_alone'), '5 15',
		'without a worker plain acks survive a clean stop');
	ack_where($s, 'alone', 'off % 2 = 0');
	$s->quit;
	crash();
	is(comes('alone'), '5 7 9 11 13 15 17 19', 'and a crash');
	$s = narad_session($node);
	fresh_topic('many', 3000);
	take_all($s, 'many');
	foreach my $i (0 .. 29)
	{
		ack_where($s, 'many', "off % 60 = $i * 2");
	}
	$s->quit;
	crash();
	$s = narad_session($node);
	take_all($s, 'many');
	is($s->value('SELECT count(*) || \' \' || count(*) FILTER (WHERE off % 2 = 0) FROM r_many'), '1500 0',
		'as many as they are');
	$s->quit;
}
$node->stop;
log_is_clean($node, 'the log tells of no crash');

# ---- little memory -------------------------------------------------------

$node = narad_node('little', conf => [ 'narad.memory_limit = 8MB', 'autovacuum = off' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad; CREATE TABLE effect (off bigint);');

# Groups made and dropped take nothing.
{
	fresh_topic('wide', 64, ', partitions => 64');
	my $s = narad_session($node);
	my @sizes;
	foreach my $round (1 .. 5)
	{
		is($s->try(q{DO $$
DECLARE
	g text;
BEGIN
	FOR i IN 1 .. 100 LOOP
		g = 'g' || i;
		PERFORM narad.create_group('wide', g, CASE i % 2 WHEN 0 THEN 'latest' ELSE 'earliest' END);
		PERFORM narad.consume('wide', 100, consumer_group => g);
		PERFORM narad.drop_group('wide', g);
	END LOOP;
END $$}), '00000', "hundred groups are made, used and dropped ($round)") or diag($s->{error});
		push @sizes, size_of('wide');
	}
	is($sizes[4], $sizes[0], 'and take no more place on disk than one');
	is($s->value("SELECT count(*) FROM narad.consume('wide', 100)"), '64', 'others get what there is');
	$s->rows('DROP TABLE wide');
	$s->quit;
}

# Full.
{
	my $s = narad_session($node);
	my $other = narad_session($node);
	my $state;
	fresh_topic('full', 60000);
	fresh_topic('small', 3);
	take_all($other, 'small');
	$s->rows('CREATE TABLE r_full (receipt text, off bigint)');
	do
	{
		$state = $s->try("WITH m AS (INSERT INTO r_full SELECT receipt, msg_offset"
			  . " FROM narad.consume('full', 1000) RETURNING 1) SELECT count(*) FROM m");
	} while ($state eq '00000' && $s->{rows}[0][0] > 0);
	is($state, '53200', 'leases use up the memory');
	cmp_ok($s->value('SELECT count(*) FROM r_full'), '>', 1000, 'which holds many');

	is($other->try("SELECT narad.ack(receipt) FROM r_small WHERE off = 1"), '00000', 'full: an ack');
	is($other->try("SELECT narad.nack(receipt) FROM r_small WHERE off = 2"), '00000', 'full: a nack');
	is($other->try("SELECT narad.nack(receipt, '1 hour') FROM r_small WHERE off = 0"), '00000', 'full: one with a delay');
	is($s->try("SELECT narad.extend(receipt, '1 hour') FROM r_full WHERE off = 1"), '00000', 'full: an extension');
	is($s->try('BEGIN; INSERT INTO effect VALUES (1);'
			. ' SELECT narad.ack(array_agg(receipt)) FROM r_full WHERE off % 2 = 1 AND off < 200; ROLLBACK'),
		'00000', 'full: acks that are rolled back');
	is($s->try('BEGIN; INSERT INTO effect VALUES (1);'
			. ' SELECT narad.ack(array_agg(receipt)) FROM r_full WHERE off % 2 = 1 AND off < 100; COMMIT'),
		'00000', 'full: acks with an effect');
	is($s->try('BEGIN; SAVEPOINT a; SELECT narad.ack(array_agg(receipt)) FROM r_full WHERE off = 2;'
			. ' ROLLBACK TO a; SELECT narad.nack(array_agg(receipt)) FROM r_full WHERE off = 4; COMMIT'),
		'00000', 'full: a savepoint');

	# Whatever needs more has it, or says so.
	foreach my $sql ("SELECT narad.create_group('full', 'another')",
		"SELECT count(*) FROM narad.consume('full', 1000, consumer_group => 'another')",
		"SELECT narad.create_topic('new', partitions => 500)",
		"SELECT narad.produce('new', '1')",
		"SELECT count(*) FROM narad.consume('new', 10)",
		"SELECT narad.produce('full', '1')",
		"SELECT count(*) FROM narad.consume('full', 1000)",
		"SELECT count(*) FROM narad.groups",
		"SELECT count(*) FROM narad.leases",
		"SELECT count(*) FROM narad.partitions")
	{
		my $state = $other->try($sql);
		like($state, qr/^(00000|53200)$/, "full: $sql") or diag($other->{error});
	}
	ok(wait_until_durable('full'), 'full: the worker writes');
	cmp_ok($s->value('SELECT count(*) FROM narad.try_ack((SELECT array_agg(receipt) FROM r_full)) WHERE accepted'),
		'>', 1000, 'the others are acked');
	cmp_ok($s->value("SELECT count(*) FROM narad.consume('full', 1000)"), '>', 0, 'then there is room again');
	$_->quit foreach ($s, $other);
}
$node->stop;
log_is_clean($node, 'the log tells of no crash');
done_testing();
