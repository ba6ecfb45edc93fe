# Copyright (c) 2026, the Narad authors
#
# I1: a committed message is delivered at least once to every group, whatever
#     crashes: it is acked, or it comes again.
# I3: a message of an aborted transaction is never delivered, nor seen by
#     SELECT or fetch.
# I4: a stale receipt settles nothing: no message is settled that nobody acked.
# I5: an ack in a transaction takes effect if and only if that commits.
# I6: the frontier covers acknowledged or dead offsets only, also after a crash.
# I7: fetch returns every committed record, in offset order.
# I12: purged content never comes back, offsets go on where they were.
#
# Forked children drive sessions that produce, consume, ack and purge, while
# the server is killed at a random moment, in one of the ways below.  What
# should be is known from a heap table written in the same transactions
# ("mirror": messages, "effect": acks), and from the children's own logs.
# Plain acks are promised only after twice narad.frontier_flush_interval.
#
# NARAD_CRASH_ROUNDS: how many crashes (5).  NARAD_SEED: of the random choices.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";
use POSIX qw(_exit);
use Time::HiRes qw(time sleep);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $rounds = $ENV{NARAD_CRASH_ROUNDS} || 5;
my $seed = $ENV{NARAD_SEED} || int(time() * 1000) % 1000000;
my $flush = 0.2;
# A busy machine may hold up the worker, and the clock is read by others.
my $slack = 0.5;

my %topics = (
	# name => [ partitions, segment size, smallest and largest padding, groups ]
	t_small => [ 1, '16MB', 0, 200, [ 'default', 'other' ] ],
	t_many => [ 8, '256kB', 50, 6000, [ 'default', 'other' ] ],
	t_rolls => [ 3, '256kB', 2000, 60000, ['default'] ],
	t_large => [ 2, '2MB', 10000, 200000, ['default'] ],
	t_purge => [ 2, '256kB', 100, 3000, ['default'] ]);
my @shared = qw(t_small t_many t_rolls t_large);
my @ways = qw(backend immediate worker twice postmaster checkpointer fast);

srand($seed);
# Few buffers write pages out early.
my $buffers = (qw(2MB 16MB))[ int(rand(2)) ];
note("NARAD_SEED=$seed NARAD_CRASH_ROUNDS=$rounds shared_buffers=$buffers");

my $node = narad_node('crash', conf => [
	'restart_after_crash = on', 'wal_level = replica',
	'full_page_writes = on', "shared_buffers = $buffers",
	'max_prepared_transactions = 20',
	"narad.frontier_flush_interval = '" . int($flush * 1000) . "ms'",
	"narad.frontier_write_interval = '50ms'"]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad');
create_helpers($node);
$node->safe_psql('postgres', q{
CREATE TABLE mirror (topic text, id text, txn text, part int, off bigint);
CREATE TABLE effect (topic text, grp text, part int, off bigint, txn text);
CREATE TABLE scratch (txn text);
});
foreach my $t (sort keys %topics)
{
	my ($partitions, $size, undef, undef, $groups) = @{ $topics{$t} };
	$node->safe_psql('postgres',
		"SELECT narad.create_topic('$t', partitions => $partitions, segment_size => '$size',"
		  . " visibility_timeout => '10 min', max_in_flight => 100000, max_acked_ahead => 100000)");
	$node->safe_psql('postgres', "SELECT narad.create_group('$t', '$_')") foreach @$groups;
}

my $logdir = PostgreSQL::Test::Utils::tempdir;
my $round;

# ------------------------------------------------------------- the children

my ($log, $s, $me, $ntxn, $take_failed, @prepared);

sub out
{
	syswrite($log, join(' ', @_) . "\n");
	return;
}

sub pick { return $_[ int(rand(@_)) ]; }
sub chance { return rand() < $_[0]; }

# True if it succeeded.  Ends the child when the connection is gone; an error
# that is not expected is told, and fails the test.
sub run_sql
{
	my ($sql, @expected) = @_;
	my $state = $s->try($sql);

	out('end'), _exit(0) unless defined $state;
	return 1 if $state eq '00000';
	out('error', $state, $s->{error}, 'in', substr($sql, 0, 300))
	  unless grep { $_ eq $state } @expected;
	return 0;
}

sub new_txn { return "r$round.c$me." . ++$ntxn; }

# One way to produce $n messages; called inside a transaction.
sub produce_some
{
	my ($t, $txn, $prefix, $n) = @_;
	my (undef, undef, $low, $high) = @{ $topics{$t} };
	my $len = $low + int(rand($high - $low + 1));
	$len *= 5 if $t eq 't_large' && chance(0.1);
	my $key = chance(0.5) ? "'k" . int(rand(50)) . "'" : 'NULL';
	my $way = $n == 1 ? 'single' : pick(qw(batch insert copy));

	if ($way eq 'single')
	{
		return run_sql("WITH p AS (SELECT * FROM narad.produce('$t',"
			  . " nt.msg('$prefix.1', $round, $len), key => $key))"
			  . " INSERT INTO mirror SELECT '$t', '$prefix.1', '$txn', partition, msg_offset FROM p");
	}
	if ($way eq 'batch')
	{
		return run_sql("INSERT INTO mirror SELECT '$t', '$prefix.' || n, '$txn', part, off"
			  . " FROM narad.produce_batch('$t', ARRAY(SELECT nt.msg('$prefix.' || i, $round, $len)"
			  . " FROM generate_series(1, $n) i)) WITH ORDINALITY AS p(part, off, n)");
	}
	run_sql("INSERT INTO mirror SELECT '$t', '$prefix.' || i, '$txn' FROM generate_series(1, $n) i");
	if ($way eq 'insert')
	{
		return run_sql("INSERT INTO $t (key, value, headers) SELECT 'k' || i,"
			  . " nt.msg('$prefix.' || i, $round, $len), '{\"h\": 1}' FROM generate_series(1, $n) i");
	}
	# The server's own idea of the padding, for COPY to bring back.
	run_sql("SELECT nt.msg('$prefix.' || i, $round, $len) FROM generate_series(1, $n) i");
	my @values = map { $_->[0] } @{ $s->{rows} };
	return run_sql("COPY $t (key, value) FROM STDIN;\n"
		  . join('', map { "\\N\t$_\n" } @values) . "\\.\n");
}

# Ends a transaction; the outcome is known only if the answer came.
sub end_txn
{
	my ($txn, $rollback) = @_;
	if ($rollback)
	{
		run_sql('ROLLBACK');
		out('rolled-back', $txn);
		return 0;
	}
	out('committing', $txn);
	run_sql('COMMIT') or return 0;
	out('committed', time(), $txn);
	return 1;
}

# Leaves some transactions prepared, and ends some of those.
sub prepare_txn
{
	my ($txn) = @_;
	out('preparing', $txn);
	run_sql("PREPARE TRANSACTION '$txn'") or return;
	push @prepared, $txn;
	while (@prepared > 4 || (@prepared && chance(0.3)))
	{
		my $gid = shift @prepared;
		run_sql((chance(0.6) ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid'");
	}
	return;
}

sub producer
{
	# Of commits that are not flushed the mirror alone says whether they stood.
	run_sql('SET synchronous_commit = off') if chance(0.3);
	while (1)
	{
		my $t = pick(@shared);
		my $txn = new_txn();
		my $max = $t eq 't_large' ? 4 : $t eq 't_rolls' ? 12 : 60;

		run_sql('BEGIN');
		my $ok = produce_some($t, $txn, "$txn.a", chance(0.5) ? 1 : 2 + int(rand($max)));
		if ($ok && chance(0.4))
		{
			# Subtransactions, one of them rolled back.
			my $u = pick(@shared);
			run_sql('SAVEPOINT s');
			produce_some($u, $txn, "$txn.b", 1 + int(rand(4)));
			my $undo = chance(0.5);
			run_sql($undo ? 'ROLLBACK TO s' : 'RELEASE s');
			produce_some($u, $txn, "$txn.c", 1 + int(rand(3))) if chance(0.5);
		}
		if ($ok && chance(0.08))
		{
			prepare_txn($txn);
			next;
		}
		end_txn($txn, !$ok || chance(0.15));
	}
	return;
}

# Leases up to $n messages, and says so in the log; returns them.
sub take
{
	my ($t, $g, $n, $more) = @_;
	my $start = time();

	$take_failed = !run_sql("SELECT receipt, partition, msg_offset, value->>'id', nt.msg_ok(value)"
		  . " FROM narad.consume('$t', $n, consumer_group => '$g'" . ($more || '') . ')',
		'NR410');
	return if $take_failed;
	my @taken = @{ $s->{rows} };
	foreach my $m (@taken)
	{
		out('taken', $start, $t, $g, @$m[1 .. 3]);
		out('error', 'damaged value', $t, @$m[1 .. 3]) if $m->[4] ne 't';
	}
	return @taken;
}

sub where_taken
{
	my $t = pick(@shared, 't_small', 't_many');
	return ($t, pick(@{ $topics{$t}[4] }), 1 + int(rand($t eq 't_large' ? 3 : 25)));
}

# Consume, effect and ack in one transaction, in any order.
sub transactional_consumer
{
	run_sql('SET synchronous_commit = off') if chance(0.2);
	while (1)
	{
		my ($t, $g, $n) = where_taken();
		my $txn = new_txn();
		my $outside = chance(0.2);

		# The lease may have been taken before the transaction that acks.
		run_sql('BEGIN') unless $outside;
		my @taken = take($t, $g, $n);
		run_sql('BEGIN') if $outside;
		if (!@taken)
		{
			run_sql('ROLLBACK');
			sleep(0.01);
			next;
		}
		my @rest = splice(@taken, int(@taken * rand(1.3)));
		if (@taken && chance(0.2))
		{
			run_sql('SAVEPOINT s');
			ack_with_effect($txn, $t, $g, @taken);
			run_sql('ROLLBACK TO s');
		}
		ack_with_effect($txn, $t, $g, @taken) if @taken;
		run_sql("SELECT narad.nack(" . sql_array(map { $_->[0] } @rest) . ')')
		  if @rest && chance(0.7);
		produce_some('t_small', $txn, "$txn.p", 1) if chance(0.3);
		end_txn($txn, chance(0.2));
	}
	return;
}

sub ack_with_effect
{
	my ($txn, $t, $g, @taken) = @_;
	my @both = (
		"INSERT INTO effect VALUES "
		  . join(', ', map { "('$t', '$g', $_->[1], $_->[2], '$txn')" } @taken),
		'SELECT narad.ack(' . sql_array(map { $_->[0] } @taken) . ')');

	@both = reverse(@both) if chance(0.5);
	foreach my $sql (@both)
	{
		run_sql($sql);
	}
	return;
}

# Acks that write nothing else, alone or in transactions that journal.
sub plain_consumer
{
	my @last;
	my $short = chance(0.2);

	while (1)
	{
		my ($t, $g, $n) = where_taken();
		my @taken;
		if ($short)
		{
			# Leases that expire under the acks.
			@taken = take($t, $g, $n, ", visibility_timeout => '20 ms'");
			next unless @taken;
			run_sql('SELECT narad.extend(' . sql_array(map { $_->[0] } @taken) . ", '50 ms')", 'NR410')
			  if chance(0.3);
		}
		else
		{
			@taken = take($t, $g, $n);
		}
		sleep(0.01), next unless @taken;
		my @give = splice(@taken, int(@taken * rand(1.3)));
		my $names = join(' ', map { "$t/$g/$_->[1]/$_->[2]" } @taken);
		my $array = sql_array(map { $_->[0] } @taken);
		my $way = pick(qw(ack ack each try journalled deferred consume));

		run_sql('SELECT narad.nack(' . sql_array(map { $_->[0] } @give) . ')', 'NR410')
		  if @give && chance(0.7);
		next unless @taken;
		out('acking', $names);
		if ($way eq 'ack')
		{
			run_sql("SELECT narad.ack($array)", 'NR410') or next;
			out('acked', time(), $names);
		}
		elsif ($way eq 'each')
		{
			foreach my $m (@taken)
			{
				run_sql("SELECT narad.ack('$m->[0]')", 'NR410') or next;
				out('acked', time(), "$t/$g/$m->[1]/$m->[2]");
			}
		}
		elsif ($way eq 'try')
		{
			my %by = map { $_->[0] => "$t/$g/$_->[1]/$_->[2]" } @taken;
			run_sql("SELECT receipt, accepted FROM narad.try_ack($array)") or next;
			my @good = map { $by{ $_->[0] } } grep { $_->[1] eq 't' } @{ $s->{rows} };
			out('acked', time(), @good) if @good;
		}
		elsif ($way eq 'deferred')
		{
			# What it wrote stands at once, its acks as plain ones do.
			run_sql('BEGIN');
			run_sql("SET LOCAL narad.ack_mode = 'deferred'");
			run_sql("INSERT INTO scratch VALUES ('x')");
			run_sql("SELECT narad.ack($array)", 'NR410') or run_sql('ROLLBACK'), next;
			run_sql('COMMIT') or next;
			out('acked', time(), $names);
		}
		elsif ($way eq 'journalled')
		{
			run_sql('BEGIN');
			run_sql("SET LOCAL narad.ack_mode = 'transactional'");
			run_sql("SELECT narad.ack($array)", 'NR410') or run_sql('ROLLBACK'), next;
			run_sql('COMMIT') or next;
			out('journalled', time(), $names);
		}
		else
		{
			my @next = take($t, $g, 1, ", ack => $array");
			out('acked', time(), $names) unless $take_failed;
			run_sql('SELECT narad.nack(' . sql_array($next[0][0]) . ')') if @next;
		}
	}
	return;
}

# Makes groups, uses them a little, drops most of them.
sub grouper
{
	my @mine;

	while (1)
	{
		my $g = "g_$round" . '_' . ++$ntxn;
		my $from = pick('earliest', 'earliest', 'latest');
		out('creating', $g);
		run_sql("SELECT narad.create_group('t_small', '$g', '$from')");
		out('created', $g) if $from eq 'earliest';
		push @mine, $g;
		foreach (0 .. int(rand(4)))
		{
			my $txn = new_txn();
			my $used = pick(@mine);
			run_sql('BEGIN');
			my @taken = take('t_small', $used, 1 + int(rand(30)));
			splice(@taken, int(@taken * rand(1.3)));
			ack_with_effect($txn, 't_small', $used, @taken) if @taken;
			end_txn($txn, chance(0.2));
		}
		next if @mine < 3 && chance(0.7);
		$g = splice(@mine, int(rand(@mine)), 1);
		out('dropping', $g);
		run_sql("SELECT narad.drop_group('t_small', '$g')");
		out('dropped', $g);
	}
	return;
}

# Replaces the content of one topic over and over; makes and drops others.
sub purger
{
	while (1)
	{
		my $txn = new_txn();
		run_sql('BEGIN');
		if (chance(0.3))
		{
			run_sql("SELECT narad.purge_topic('t_purge')");
			run_sql("DELETE FROM mirror WHERE topic = 't_purge'");
			run_sql("DELETE FROM effect WHERE topic = 't_purge'");
		}
		produce_some('t_purge', $txn, "$txn.a", 1 + int(rand(30)));
		if (chance(0.2))
		{
			my $name = "t_new_$me";
			run_sql("SELECT narad.drop_topic(to_regclass('$name')) WHERE to_regclass('$name') IS NOT NULL");
			run_sql("SELECT narad.create_topic('$name', partitions => 3)");
			run_sql("SELECT count(*) FROM narad.produce_batch('$name',"
				  . " ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 20) i))");
		}
		if (chance(0.3))
		{
			my @taken = take('t_purge', 'default', 5);
			ack_with_effect($txn, 't_purge', 'default', @taken) if @taken;
		}
		end_txn($txn, chance(0.2));
		run_sql('CHECKPOINT') if chance(0.05);
	}
	return;
}

my @kinds = (\&producer, \&producer, \&transactional_consumer,
	\&transactional_consumer, \&plain_consumer, \&plain_consumer, \&grouper, \&purger);

sub child
{
	my ($i) = @_;

	$me = $i;
	$ntxn = 0;
	srand($seed * 1000 + $round * 20 + $i);
	open($log, '>', "$logdir/$round.$i") or _exit(1);
	eval {
		local $ENV{PGAPPNAME} = 'narad child';
		$s = narad_session($node);
		run_sql('SELECT 1');
		$kinds[$i]->();
	};
	out('error', 'child', $@);
	_exit(1);
}

# --------------------------------------------------------------- the crashes

sub server_pids
{
	my ($where) = @_;
	return split(/\n/, $node->safe_psql('postgres',
		'SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND '
		  . ($where || 'true') . ' ORDER BY backend_start'));
}

# Kills one process of the server, which then restarts all of its own.
sub kill_one
{
	my (@pids) = @_;
	kill('KILL', pick(@pids)) if @pids;
	return;
}

# Crashes the server.  Returns the time before it, which acks must have preceded.
sub crash
{
	my ($way) = @_;
	my @all = server_pids();
	my @clients = server_pids("application_name = 'narad child'");
	my @workers = server_pids("backend_type LIKE 'narad%'");
	my @checkpointer = server_pids("backend_type = 'checkpointer'");
	my $moment = time();

	kill_one(@clients) if $way eq 'backend';
	kill_one(@workers ? @workers : @clients) if $way eq 'worker';
	kill_one(@checkpointer) if $way eq 'checkpointer';
	$node->stop('immediate') if $way eq 'immediate' || $way eq 'twice';
	$node->stop('fast') if $way eq 'fast';
	$node->kill9 if $way eq 'postmaster';
	return ($moment, @all);
}

# A crash in the middle of recovery, at its best.
sub crash_again
{
	my $pgdata = $node->data_dir;
	system_log('pg_ctl', '-W', '-D', $pgdata, '-l', $node->logfile, 'start');
	poll_until('there is a postmaster', sub { -s "$pgdata/postmaster.pid" });
	sleep(rand(0.3));
	system_log('pg_ctl', '-w', '-D', $pgdata, '-m', 'immediate', 'stop');
	return;
}

# Starts the children, waits until they did enough, crashes, waits for their
# end.  Returns the moment of the crash and how many children ended badly.
sub run_round
{
	my ($way) = @_;
	my $goal = 20 + int(rand(200));
	my @children;

	foreach my $i (0 .. $#kinds)
	{
		my $pid = fork();
		die "fork: $!" unless defined $pid;
		child($i) if $pid == 0;
		push @children, $pid;
	}
	my @logs = map { "$logdir/$round.$_" } 0 .. $#kinds;
	my $begun = time();
	poll_until('the sessions did something',
		sub { grep({ -s $_ } @logs) == @logs
			  && count_commits(@logs) >= (time() < $begun + 4 ? $goal : 20) });
	# At any moment, and often late enough for old acks to be there.
	sleep(rand(2)) if time() - $begun < 3;

	my ($moment, @pids) = crash($way);
	my $bad = wait_for_children(@children);
	crash_again() if $way eq 'twice';
	if ($way eq 'postmaster')
	{
		start_after_kill($node, @pids);
	}
	elsif ($way =~ /^(immediate|twice|fast)$/)
	{
		$node->start;
	}
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
	return ($moment, $bad);
}

# How many of the children ended badly, or not at all.
sub wait_for_children
{
	my (@children) = @_;
	my $bad = 0;
	my $start = time();

	foreach my $i (0 .. $#children)
	{
		my $got;
		while (($got = waitpid($children[$i], POSIX::WNOHANG())) == 0 && time() < $start + 60)
		{
			sleep(0.02);
		}
		if ($got == 0)
		{
			kill('KILL', $children[$i]);
			waitpid($children[$i], 0);
			$bad++;
		}
		elsif ($? != 0)
		{
			$bad++;
		}
	}
	return $bad;
}

sub count_commits
{
	my $n = 0;
	foreach my $file (@_)
	{
		$n += () = slurp_file($file) =~ /^(?:committed|acked|journalled) /mg;
	}
	return $n;
}

# --------------------------------------------------------------- the verdict

# What the children of this round logged.
sub read_logs
{
	my ($moment) = @_;
	my %l = map { $_ => {} }
	  qw(committed committing rolled_back acked_ever acked_old journalled settled_at);
	$l{$_} = {} foreach qw(created dropping dropped);
	$l{taken} = [];
	$l{errors} = [];

	foreach my $i (0 .. $#kinds)
	{
		foreach my $line (split(/\n/, slurp_file("$logdir/$round.$i")))
		{
			my ($what, @f) = split(/ /, $line);
			push @{ $l{errors} }, $line if $what eq 'error';
			$l{committed}{ $f[1] } = $f[0] if $what eq 'committed';
			$l{committing}{ $f[0] } = 1 if $what eq 'committing';
			$l{rolled_back}{ $f[0] } = 1 if $what eq 'rolled-back';
			$l{$what}{ $f[0] } = 1 if $what =~ /^(created|dropping|dropped)$/;
			push @{ $l{taken} }, [@f] if $what eq 'taken';
			$l{acked_ever}{$_} = 1 foreach $what eq 'acking' ? @f : ();
			next unless $what eq 'acked' || $what eq 'journalled';
			my $at = shift @f;
			foreach my $m (@f)
			{
				$l{settled_at}{$m} = $at;
				$l{journalled}{$m} = 1 if $what eq 'journalled';
				$l{acked_old}{$m} = 1 if $at + 2 * $flush + $slack < $moment;
			}
		}
	}
	return \%l;
}

# Names of some elements, for a message.
sub some
{
	my (@list) = @_;
	return scalar(@list) . ': ' . join(' ', sort { $a cmp $b } @list[ 0 .. ($#list < 9 ? $#list : 9) ]);
}

sub none
{
	my ($name, @list) = @_;
	is(scalar(@list), 0, $name) or diag("$name: " . some(@list));
	return;
}

my %settled;    # topic/group/partition/offset => settled at the last crash
my %bounds;     # topic/partition => one past the highest offset seen
my %owner;      # topic/partition/offset => id, of all that were ever delivered
my $late = 0;
my $old = 0;
my $db;

# The answer to a query as psql prints it.
sub answer
{
	return join("\n", map { join('|', @$_) } $db->rows($_[0]));
}

sub check_transactions
{
	my ($p, $l) = @_;
	my %stood = map { $_->[0] => 1 } $db->rows(
		"SELECT txn FROM mirror WHERE txn LIKE 'r$round.%' UNION SELECT txn FROM effect");

	none("$p: transactions rolled back left nothing", grep { $stood{$_} } keys %{ $l->{rolled_back} });
	note("$p: " . scalar(keys %{ $l->{committed} }) . ' commits, '
		  . scalar(grep { !$l->{committed}{$_} } keys %{ $l->{committing} }) . ' cut off, '
		  . scalar(@{ $l->{taken} }) . ' deliveries, '
		  . scalar(keys %{ $l->{acked_old} }) . ' old plain acks');
	return;
}

# SELECT and fetch against the mirror.
sub check_content
{
	my ($p, $t) = @_;
	my %is;

	is(answer(
			"SELECT count(*), count(DISTINCT value->>'id') FROM $t"),
		answer(
			"SELECT count(*), count(DISTINCT id) FROM mirror WHERE topic = '$t'"),
		"$p: $t has as many messages as were committed");
	is(answer( qq{
SELECT coalesce(x.id, 'extra ' || y.id), x.part, x.off, y.partition, y.msg_offset
FROM (SELECT * FROM mirror WHERE topic = '$t') x
	FULL JOIN (SELECT partition, msg_offset, value->>'id' AS id FROM $t) y ON x.id = y.id
WHERE x.id IS NULL OR y.id IS NULL OR x.part <> y.partition OR x.off <> y.msg_offset
LIMIT 5}), '', "$p: $t has the messages committed, at their places");
	is(answer( qq{
SELECT count(*) FROM $t WHERE CASE WHEN value->>'r' = '$round' OR $round = $rounds
	THEN NOT nt.msg_ok(value) END}), '0', "$p: $t has them whole");
	is(answer( qq{
SELECT coalesce(x.msg_offset, y.msg_offset)
FROM (SELECT partition, msg_offset, value FROM $t) x FULL JOIN
	(SELECT o.partition, f.msg_offset, f.value FROM narad.offsets('$t') o,
	nt.fetch_all('$t', o.partition) f) y USING (partition, msg_offset)
WHERE x.value IS DISTINCT FROM y.value LIMIT 5}), '', "$p: $t by fetch is as by SELECT");
	is(answer( qq{
SELECT count(*) FROM (SELECT (value->>'r')::int AS r,
	lag((value->>'r')::int) OVER (PARTITION BY partition ORDER BY msg_offset) AS l FROM $t) x
WHERE r < l}), '0', "$p: $t: offsets given after a crash are above those before");
	return;
}

# Offsets never go backwards, and one was never given twice.
sub check_offsets
{
	my ($p, $t, $l) = @_;
	my (@low, @twice, @ghosts, %present);

	foreach my $row ($db->rows(
		"SELECT partition, msg_offset, value->>'id' FROM $t"))
	{
		my ($part, $off, $id) = @$row;
		$present{"$part/$off"} = 1;
		push @twice, "$part/$off" if ($owner{"$t/$part/$off"} ||= $id) ne $id;
	}
	foreach my $m (grep { $_->[1] eq $t } @{ $l->{taken} })
	{
		my (undef, undef, undef, $part, $off, $id) = @$m;
		push @twice, "$part/$off" if ($owner{"$t/$part/$off"} ||= $id) ne $id;
		push @ghosts, "$part/$off" unless $present{"$part/$off"} || $t eq 't_purge';
	}
	none("$p: $t: no commit was lost of which a message had been delivered", @ghosts);
	none("$p: $t: no offset was given twice", @twice);

	foreach my $row ($db->rows(
		"SELECT partition, end_offset FROM narad.offsets('$t')"))
	{
		my ($part, $end) = @$row;
		push @low, "$part: $end < $bounds{\"$t/$part\"}" if $end < ($bounds{"$t/$part"} || 0);
		$bounds{"$t/$part"} = $end;
	}
	foreach my $m (grep { $_->[1] eq $t } @{ $l->{taken} })
	{
		push @low, "$m->[3]: delivered $m->[4]" if $bounds{"$t/$m->[3]"} <= $m->[4];
	}
	none("$p: $t: the ends of the partitions are past all seen", @low);
	return;
}

# Takes everything a group has left; leaves it as it was, or acks it.
sub drain
{
	my ($t, $g, $keep) = @_;
	my %got;

	$db->rows('BEGIN');
	while (1)
	{
		my @rows = $db->rows("SELECT receipt, partition, msg_offset, value->>'id'"
			  . " FROM narad.consume('$t', 1000, consumer_group => '$g')");
		last unless @rows;
		foreach my $m (@rows)
		{
			my $name = "$t/$g/$m->[1]/$m->[2]";
			$got{twice}{$name} = 1 if $got{is}{$name};
			$got{is}{$name} = $m->[3];
		}
		next if $keep;
		$db->rows('SELECT narad.ack(' . sql_array(map { $_->[0] } @rows) . ')');
		$db->rows("INSERT INTO effect VALUES "
			  . join(', ', map { "('$t', '$g', $_->[1], $_->[2], 'drain$round')" } @rows));
	}
	$db->rows($keep ? 'ROLLBACK' : 'COMMIT');
	return \%got;
}

# What comes again, against what should.
sub check_deliveries
{
	my ($p, $t, $g, $l, $way, $keep) = @_;
	my (%committed, %effect, @again, @lost, @wrong);

	foreach my $row ($db->rows("SELECT partition, msg_offset, value->>'id' FROM $t"))
	{
		$committed{"$t/$g/$row->[0]/$row->[1]"} = $row->[2];
	}
	foreach my $row ($db->rows("SELECT part, off, count(*) FROM effect"
		  . " WHERE topic = '$t' AND grp = '$g' GROUP BY 1, 2"))
	{
		$effect{"$t/$g/$row->[0]/$row->[1]"} = $row->[2];
	}
	none("$p: $t/$g: every effect happened once", grep { $effect{$_} > 1 } keys %effect);

	my $got = drain($t, $g, $keep);
	none("$p: $t/$g: nothing is leased twice", keys %{ $got->{twice} });
	foreach my $m (keys %{ $got->{is} })
	{
		push @wrong, $m if ($committed{$m} || '') ne $got->{is}{$m};
		push @again, "$m(effect)" if $effect{$m};
		push @again, "$m(journalled)" if $l->{journalled}{$m};
		push @again, "$m(settled before)" if $settled{$m};
		push @again, "$m(plain)"
		  if $l->{acked_old}{$m} || ($way eq 'fast' && $l->{settled_at}{$m});
		$late++ if $l->{acked_ever}{$m};
	}
	foreach my $m (keys %committed)
	{
		$old++ if $l->{acked_old}{$m};
		next if $got->{is}{$m};
		push @lost, $m unless $effect{$m} || $settled{$m} || $l->{acked_ever}{$m};
		$settled{$m} = 1;
	}
	none("$p: $t/$g: only committed messages come", @wrong);
	none("$p: $t/$g: nothing that was acked for good comes again", @again);
	none("$p: $t/$g: what was not acked comes again", @lost);
	if (!$keep)
	{
		$settled{$_} = 1 foreach keys %{ $got->{is} };
	}
	return;
}

# Transactions prepared before the crash are still open: nothing of them comes.
# Then they are ended.
sub check_prepared
{
	my ($p) = @_;
	my @gids = map { $_->[0] } $db->rows('SELECT gid FROM pg_prepared_xacts');
	my @wrong;

	foreach my $t (@gids ? @shared : ())
	{
		my %ids = map { $_->[0] => 1 } $db->rows("SELECT id FROM mirror WHERE topic = '$t'");
		my $got = drain($t, 'default', 1);
		push @wrong, grep { !$ids{$_} } values %{ $got->{is} };
		push @wrong, map { "fetched $_->[0]" } $db->rows(
			"SELECT f.value->>'id' FROM narad.offsets('$t') o, nt.fetch_all('$t', o.partition) f"
			  . " EXCEPT SELECT id FROM mirror WHERE topic = '$t'");
	}
	none("$p: nothing comes of " . scalar(@gids) . ' transactions that are still prepared', @wrong);
	foreach my $gid (@gids)
	{
		$db->rows((rand() < 0.6 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid'");
	}
	return;
}

my %made;    # groups of t_small that were made, and not dropped

# Groups made are there, groups dropped are not; of some that is not known.
sub check_groups
{
	my ($p, $l) = @_;
	my @wrong;
	my %is = map { $_->[0] => 1 } $db->rows(
		"SELECT DISTINCT consumer_group FROM narad.groups WHERE topic = 't_small'::regclass");

	$made{$_} = 1 foreach keys %{ $l->{created} };
	delete @made{ keys %{ $l->{dropping} } };
	push @wrong, grep { !$is{$_} } keys %made;
	push @wrong, grep { $is{$_} } keys %{ $l->{dropped} };
	none("$p: groups that were made are there, those dropped are not", @wrong);
	foreach my $g (grep { /^g_/ && (!$made{$_} || keys %made > 4) } keys %is)
	{
		$db->rows("SELECT narad.drop_group('t_small', '$g')");
		delete $made{$g};
	}
	return;
}

# While the server ran: nothing that somebody was told is settled came again.
sub check_running
{
	my ($p, $l) = @_;
	my %at = %{ $l->{settled_at} };
	my @again;

	foreach my $row ($db->rows(
		"SELECT topic, grp, part, off, txn FROM effect"))
	{
		my ($t, $g, $part, $off, $txn) = @$row;
		$at{"$t/$g/$part/$off"} = $l->{committed}{$txn} if $l->{committed}{$txn};
	}
	foreach my $m (@{ $l->{taken} })
	{
		my ($start, $t, $g, $part, $off) = @$m;
		my $settled_at = $at{"$t/$g/$part/$off"};
		push @again, "$t/$g/$part/$off" if defined $settled_at && $settled_at < $start;
	}
	none("$p: nothing settled was delivered while the server ran", @again);
	return;
}

# In the long form the topics would grow for ever.
sub start_over
{
	foreach my $t (@shared)
	{
		$db->rows('BEGIN');
		$db->rows("SELECT narad.purge_topic('$t')");
		$db->rows("DELETE FROM mirror WHERE topic = '$t'");
		$db->rows("DELETE FROM effect WHERE topic = '$t'");
		$db->rows('COMMIT');
	}
	%settled = ();
	return;
}

for ($round = 1; $round <= $rounds; $round++)
{
	# Every way in turn, the first ones surely.
	my $way = $ways[ ($round - 1) % @ways ];
	my $p = "round $round ($way)";
	my $begun = time();
	my ($moment, $bad) = run_round($way);
	my $checking = time();

	is($bad, 0, "$p: every session ended with the server, none hung");
	my $l = read_logs($moment);
	$db = narad_session($node);
	none("$p: no unexpected error", @{ $l->{errors} });
	# A purge that committed took the past of its topic with it.
	delete @settled{ grep { m{^t_purge/} } keys %settled };
	check_transactions($p, $l);
	check_running($p, $l);
	check_prepared($p);
	check_groups($p, $l);
	foreach my $t (sort keys %topics)
	{
		check_content($p, $t);
		check_offsets($p, $t, $l);
		foreach my $g (@{ $topics{$t}[4] }, $t eq 't_small' ? sort keys %made : ())
		{
			check_deliveries($p, $t, $g, $l, $way, rand() < 0.6);
		}
	}
	is(answer( q{
SELECT c.relname FROM pg_class c WHERE c.relname LIKE 't\_new\_%'
	AND (SELECT count(*) FROM nt.fetch_all(c.oid, 0)) +
		(SELECT count(*) FROM nt.fetch_all(c.oid, 1)) +
		(SELECT count(*) FROM nt.fetch_all(c.oid, 2)) <> 20}),
		'', "$p: topics made and dropped are whole or gone");
	start_over() if $round % 8 == 0;
	$db->quit;
	note(sprintf('%s: %.1f s, and %.1f s to look at it', $p, $checking - $begun, time() - $checking));
}

note("$old plain acks were old enough to stand; $late acks were lost and came again");
$node->stop;
log_is_clean($node, 'the log tells of no crash but ours', kills => 1);
done_testing();
