# Copyright (c) 2026, the Narad authors
#
# I5: what is acknowledged in a pipeline is settled with its transaction only.
# I8: each message wakes one waiter, among 600 too, also when a waiter dies with
#     the wake in his hand, when the transaction was prepared, when no worker is
#     there; what was promised to somebody who does not come goes to the next;
#     a token of a session that has ended is in nobody's way, but not lost.
# I9: CALL wait has neither snapshot nor lock; a NOTIFY is sent by the worker, never
#     by a producer, so neither a listener that does not listen nor a NOTIFY that
#     fails is in anybody's way.
# I12: waits end with the server, however that ends.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('wait',
	streaming => 1,
	conf => [
		'max_connections = 650', 'max_prepared_transactions = 5',
		'autovacuum = off', 'restart_after_crash = on', "narad.hold_time = '200ms'"
	]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad');
$node->safe_psql('postgres', slurp_file("$ENV{NARAD_INPUTS}/test/narad_test/narad_test.sql"))
  if $ENV{NARAD_TESTING};

sub topic
{
	my ($name, $options) = @_;
	$node->safe_psql('postgres', "SELECT narad.create_topic('$name', visibility_timeout => '1 hour'"
		  . ($options || '') . ')');
	return;
}

sub produce
{
	my ($topic, $n) = @_;
	$node->safe_psql('postgres', "SELECT count(*) FROM narad.produce_batch('$topic',"
		  . ' ARRAY(SELECT to_jsonb(i) FROM generate_series(1, ' . ($n || 1) . ') i))');
	return;
}

sub until_waiting
{
	my ($n) = @_;
	return poll_until("$n wait", sub {
		one_value($node, 'SELECT count(*) FROM narad.waiters') == $n });
}

# Many sessions that wait, by one process.
sub start_waiters
{
	my ($n, $sql) = @_;
	my $script = PostgreSQL::Test::Utils::tempdir() . '/wait.sql';
	my ($out, $err) = ('', '');

	append_to_file($script, "$sql\n");
	my $run = IPC::Run::start(
		[
			'pgbench', '-n', '-c', $n, '-j', 1, '-t', 1, '-f', $script,
			'-h', $node->host, '-p', $node->port, 'postgres'
		],
		'>', \$out, '2>', \$err);
	return { run => $run, out => \$out, err => \$err };
}

# Who sent the last one.
my $notifier;

sub notified
{
	my ($session, $channel) = @_;
	return poll_until("a notification of $channel", sub {
		$session->try('SELECT 1');
		foreach my $row (@{ $session->{rows} })
		{
			next unless $row->[0] =~ /Asynchronous notification "$channel" .* with PID (\d+)/;
			$notifier = $1;
			return 1;
		}
		return 0 });
}

# 600 of them.
topic('many');
my $waiters = start_waiters(600, "SELECT narad.consume('many', wait => '60 s');");
ok(until_waiting(600), '600 sessions wait');
produce('many');
ok(until_waiting(599), 'a message wakes one of them');
is(one_value($node, 'SELECT in_flight FROM narad.groups'), '1', '... which has it');
produce('many', 300);
ok(until_waiting(299), 'a commit of 300 wakes 300');
produce('many') for 1 .. 3;
produce('many', 296);
ok(IPC::Run::finish($waiters->{run}), 'all have been served') or diag(${ $waiters->{err} });
is(one_value($node, 'SELECT in_flight FROM narad.groups'), '600', '... each with a message of his own');
is(one_value($node, 'SELECT count(*) FROM narad.verify(\'many\')'), '0', 'nothing is wrong with the leases');

# Prepared transactions have no callback.
topic('prepared');
my $one = narad_session($node);
my $two = narad_session($node);
$node->safe_psql('postgres', "BEGIN; SELECT narad.produce('prepared', '1'); PREPARE TRANSACTION 'p'");
$one->send("SELECT msg_offset FROM narad.consume('prepared', wait => '60 s')");
$two->send("SELECT msg_offset FROM narad.fetch('prepared', 0, 0, wait => '60 s')");
ok(until_waiting(2), 'a prepared message is waited for');
$node->safe_psql('postgres', "COMMIT PREPARED 'p'");
is($one->finish, '00000', 'COMMIT PREPARED wakes a consumer');
is($one->{rows}[0][0], '0', '... who gets it');
is($two->finish, '00000', '... and a reader');
is($two->{rows}[0][0], '0', '... too');

# Transactions that fill the cap, and die: their leases go to those who wait for it.
topic('cap', ', max_in_flight => 10');
produce('cap', 20);
my @takers = map { narad_session($node) } 1 .. 10;
$_->rows("BEGIN; SELECT narad.consume('cap')") foreach @takers;
$waiters = start_waiters(10, join("\n",
	("SELECT narad.ack(receipt) FROM narad.consume('cap', wait => '60 s');") x 2));
ok(until_waiting(10), 'ten wait at a cap that open transactions fill');
$node->safe_psql('postgres', 'SELECT pg_terminate_backend(pid) FROM unnest(ARRAY['
	  . join(',', map { $_->backend_pid } @takers) . ']) pid');
is(scalar(grep { defined $_->finish } map { $_->send('SELECT 1'); $_ } @takers), 0, '... which are terminated');
ok(IPC::Run::finish($waiters->{run}), '... and all who waited are served, twice') or diag(${ $waiters->{err} });
is(one_value($node, "SELECT frontier, in_flight FROM narad.groups WHERE topic = 'cap'::regclass"), '19|0',
	'... with all there is');
is(one_value($node, "SELECT count(*) FROM narad.verify('cap')"), '0', '... and the leases are in order');

# Sleepers that are cancelled or terminated, whatever they sleep in.
topic('sleepers');
$node->safe_psql('postgres', "SELECT narad.consume('sleepers')");
my $n = 0;
foreach my $call ("SELECT narad.consume('sleepers', wait => '60 s')", "CALL narad.wait('sleepers', '1 hour')",
	"SELECT narad.fetch('sleepers', 0, (SELECT end_offset FROM narad.offsets('sleepers')), wait => '60 s')")
{
	my ($name) = $call =~ /narad\.(\w+)/;
	foreach my $end ('cancel', 'terminate')
	{
		my $pid = $one->backend_pid;
		$one->send($call);
		until_waiting(1);
		$two->send("SELECT msg_offset, deliveries FROM narad.consume('sleepers', wait => '60 s')");
		ok(until_waiting(2), "one sleeps in $name, and one behind him");
		$node->safe_psql('postgres', "SELECT pg_${end}_backend($pid)");
		is($one->finish, $end eq 'cancel' ? '57014' : undef, "... $end: the sleep ends");
		ok(until_waiting(1), '... and only the other waits');
		produce('sleepers');
		is($two->finish, '00000', '... who is served');
		is(join('|', @{ $two->{rows}[0] }), "$n|1", '... with a message that nobody had before');
		is(one_value($node, "SELECT in_flight FROM narad.groups WHERE topic = 'sleepers'::regclass"), ++$n,
			'... and no lease is left of the first');
		$one = narad_session($node) if $end eq 'terminate';
	}
}

# A waiter that dies with the wake in his hand.
SKIP:
{
	skip 'needs stop points', 3 unless $ENV{NARAD_TESTING};

	topic('dies');
	my $pid = $one->backend_pid;
	$one->send("SELECT narad.consume('dies', wait => '60 s')");
	ok(until_waiting(1), 'the first waits');
	$two->send("SELECT msg_offset FROM narad.consume('dies', wait => '60 s')");
	until_waiting(2);
	$node->safe_psql('postgres', "SELECT narad_test.stop_arm('wait-woken')");
	produce('dies');
	$node->safe_psql('postgres', "SELECT narad_test.stop_wait('wait-woken')");
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	ok(!defined $one->finish, '... is terminated when he is served');
	$node->safe_psql('postgres', "SELECT narad_test.stop_release('wait-woken')");
	$two->finish;
	is($two->{rows}[0][0], '0', '... and the second gets the message');
	$one = narad_session($node);
}

# A promise to somebody who does not come.
topic('holds');
$node->safe_psql('postgres', "SELECT narad.consume('holds')");
$one->send("CALL narad.wait('holds', '60 s')");
until_waiting(1);
$two->send("CALL narad.wait('holds', '60 s')");
until_waiting(2);
is(one_value($node, q{
SELECT count(*) FROM pg_stat_activity a JOIN narad.waiters w USING (pid)
WHERE backend_xmin IS NOT NULL OR backend_xid IS NOT NULL}), '0', 'CALL wait holds back no vacuum');
is(one_value($node, q{
SELECT count(*) FROM pg_locks l JOIN narad.waiters w USING (pid) WHERE locktype = 'relation'}), '0',
	'... and has no lock on a table');
produce('holds');
is($one->finish, '00000', 'one is told of a message');
is($one->{rows}[0][0], 't', '... and does not come for it');
is($two->finish, '00000', 'so the next is told');
is($two->{rows}[0][0], 't', '... of the same');
is(one_value($node, "SELECT count(*) FROM narad.consume('holds')"), '1', 'which anybody may take meanwhile');

# LISTEN.
topic('tokens');
$one->rows('LISTEN ready');
is(scalar($one->rows("SELECT * FROM narad.consume('tokens', notify => 'ready')")), 0, 'a consumer finds nothing');
is(one_value($node, q{SELECT kind || ' ' || consumer_group FROM narad.waiters}), 'token default', '... leaves a token');
produce('tokens');
ok(notified($one, 'ready'), '... and is notified');
is($notifier, one_value($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'narad worker'"),
	'... by the worker');
is(one_value($node, 'SELECT count(*) FROM narad.waiters'), '0', '... once');
is(scalar($one->rows("SELECT * FROM narad.consume('tokens')")), 1, 'the message is there');
# Who waits comes before who wants to be told.
$one->rows("SELECT * FROM narad.consume('tokens', notify => 'ready')");
$two->send("SELECT msg_offset FROM narad.consume('tokens', wait => '60 s')");
until_waiting(2);
produce('tokens');
is($two->finish, '00000', 'a waiter is served first');
is(one_value($node, 'SELECT count(*) FROM narad.waiters'), '1', '... and the token stays');
# Without its worker the notification comes when there is one again.
my $worker = one_value($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'narad worker'");
$node->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
produce('tokens');
ok(notified($one, 'ready'), 'a worker that ended is replaced, and sends it');
# An expired lease, too, is told of.
$one->rows("SELECT * FROM narad.consume('tokens', visibility_timeout => '200 ms')");
$one->rows("SELECT * FROM narad.consume('tokens', notify => 'ready')");
ok(notified($one, 'ready'), 'a lease that ends is told of by the worker');
# While the worker does not get to it, nothing piles up: who is here needs not be
# told of what he was to be told before.
topic('piled');
$worker = one_value($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'narad worker'");
$one->rows('LISTEN piled');
$one->rows('LISTEN done');
kill('STOP', $worker);
foreach (1 .. 130)
{
	$one->rows("SELECT * FROM narad.consume('piled', notify => 'piled')");
	$two->rows("SELECT * FROM narad.produce('piled', '1')");
	$one->rows("SELECT * FROM narad.consume('piled')");
}
$one->rows("SELECT * FROM narad.consume('piled', notify => 'done')");
$two->rows("SELECT * FROM narad.produce('piled', '1')");
kill('CONT', $worker);
my $npiled = 0;
ok(poll_until('a notification of done', sub {
	$one->try('SELECT 1');
	my @told = grep { $_->[0] =~ /^Asynchronous notification/ } @{ $one->{rows} };
	$npiled += grep { $_->[0] =~ /"piled"/ } @told;
	return grep { $_->[0] =~ /"done"/ } @told }), 'after a while the worker sends a notification');
cmp_ok($npiled, '<=', 1, '... and not one for each round before');
# Tokens of sessions that have ended.  The worker stands still where it must not be
# the one who ends a promise.
sub while_stopped
{
	my ($todo) = @_;
	my $pid = one_value($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'narad worker'");
	kill('STOP', $pid);
	$todo->();
	kill('CONT', $pid);
	return;
}
sub leave_and_end
{
	my ($session, $how) = @_;
	my $pid = $session->backend_pid;
	return $session->rows($how) if $how =~ /^(DISCARD|UNLISTEN)/;
	$session->quit;
	return poll_until('the session ends', sub {
		one_value($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid") eq '0' });
}
sub tokens_of
{
	my ($topic) = @_;
	return one_value($node, "SELECT count(*), count(pid) FROM narad.waiters WHERE topic = '$topic'::regclass");
}
$one->rows('LISTEN here; LISTEN done');
foreach my $how ('the end of a session', 'DISCARD ALL', 'UNLISTEN *')
{
	my $t = lc((split(' ', $how))[0]) . '_tokens';
	my $gone = narad_session($node);
	topic($t);
	$one->rows("SELECT * FROM narad.consume('$t', notify => 'here')");
	$gone->rows("SELECT * FROM narad.consume('$t', notify => 'gone$_')") for 1 .. 3;
	leave_and_end($gone, $how);
	$one->rows("SELECT * FROM narad.consume('$t', notify => 'new')");
	is(tokens_of($t), '5|2', "$how: its tokens are there");
	while_stopped(sub {
		produce($t, 2);
		is(tokens_of($t), '3|0', '... behind those of who is there, left before or after');
	});
	ok(notified($one, 'here'), '... who is told at once');
	$one->rows("SELECT narad.ack(receipt) FROM narad.consume('$t', 10)");

	# The promise of one who ends before he comes.
	topic("${t}_promise");
	$gone = narad_session($node) if $how =~ /session/;
	$gone->rows("SELECT * FROM narad.consume('${t}_promise', notify => 'gone')");
	$one->rows("SELECT * FROM narad.consume('${t}_promise', notify => 'here')");
	while_stopped(sub {
		produce("${t}_promise");
		is(tokens_of("${t}_promise"), '1|1', "$how: who was told does not come");
		leave_and_end($gone, $how);
		is(tokens_of("${t}_promise"), '0|0', '... and the next is, without the time he has for it');
	});
	ok(notified($one, 'here'), '... at once');
	$gone->quit if $how !~ /session/;
	$node->safe_psql('postgres', "DROP TABLE $t, ${t}_promise");
}
# Who listens need not be who left the token.
topic('heard');
{
	my $gone = narad_session($node);
	$gone->rows("SELECT * FROM narad.consume('heard', notify => 'here')");
	leave_and_end($gone, 'quit');
}
produce('heard');
ok(notified($one, 'here'), 'another session hears the token of one that has ended');
# While the worker does not get to it, of those no more are kept than a group may
# have tokens.
topic('unsent');
{
	my $script = PostgreSQL::Test::Utils::tempdir() . '/unsent.sql';

	append_to_file($script, join("\n",
		"SELECT narad.consume('unsent', notify => 'u' || (SELECT end_offset FROM narad.offsets('unsent')));",
		'DISCARD ALL;', "SELECT narad.produce('unsent', '1');",
		"SELECT narad.ack(receipt) FROM narad.consume('unsent');", ''));
	$one->rows("DO 'BEGIN FOR i IN 0 .. 1039 LOOP EXECUTE ''LISTEN u'' || i; END LOOP; END'");
	while_stopped(sub {
		command_ok([ 'pgbench', '-n', '-t', 1040, '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
			'1040 clients, one after the other in one session, leave a token and are told by nobody');
		$one->rows("SELECT * FROM narad.consume('unsent', notify => 'done')");
		$two->rows("SELECT * FROM narad.produce('unsent', '1')");
	});
	my $nunsent = 0;
	ok(poll_until('a notification of done', sub {
		$one->try('SELECT 1');
		$nunsent += grep { $_->[0] =~ /^Asynchronous notification "u/ } @{ $one->{rows} };
		return grep { $_->[0] =~ /^Asynchronous notification "done"/ } @{ $one->{rows} } }),
		'... until the worker goes on');
	is($nunsent, 1024, '... which tells as many as a group may have');
}
$node->safe_psql('postgres', 'DROP TABLE heard, unsent');
# Who listens, and sits in a transaction, holds up the server's queue, and nothing
# of ours.
topic('idle');
my $idle = narad_session($node);
my $channel = 'c' x 63;
$idle->rows("LISTEN $channel; BEGIN; SELECT 1");
my $nmoved = 0;
ok(poll_until('the queue grows', sub {
	$one->rows("SELECT * FROM narad.consume('idle', notify => '$channel')");
	$two->rows("SELECT narad.produce('idle', '1')");
	$nmoved += $two->value("SELECT count(*) FROM narad.consume('idle', 10)");
	return $one->value('SELECT pg_notification_queue_usage() > 0') eq 't' }),
	'a listener idle in his transaction keeps notifications, and producers and consumers go on');
is(one_value($node, "SELECT end_offset FROM narad.partitions WHERE topic = 'idle'::regclass"), $nmoved,
	'... with each message');
my @told = grep { $_->[0] =~ /^Asynchronous notification "$channel"/ } $idle->rows('COMMIT');
ok(@told || notified($idle, $channel), '... and is notified when it ends');

# A NOTIFY that fails is tried again, and nothing waits for it.
SKIP:
{
	skip 'needs stop points', 7 unless $ENV{NARAD_TESTING};

	topic('failing');
	my $logged_from = -s $node->logfile;
	my $failures = sub {
		return scalar(() = slurp_file($node->logfile, $logged_from) =~ /ERROR:  test point "notify-commit" fails/g) };
	$idle->rows('LISTEN failing');
	$node->safe_psql('postgres', q{SELECT narad_test.stop_arm('notify-commit')});
	$one->rows("SELECT * FROM narad.consume('failing', notify => 'failing')");
	produce('failing');
	ok(poll_until('a NOTIFY fails', sub { $failures->() > 0 }), 'a NOTIFY that fails is logged');
	is($two->try("SELECT narad.ack(receipt) FROM narad.consume('failing')"), '00000', '... the message is there');
	$two->send("SELECT msg_offset FROM narad.consume('failing', wait => '60 s')");
	until_waiting(1);
	produce('failing');
	is($two->finish, '00000', '... and the next goes to who waits');
	ok(poll_until('the ack is written', sub { one_value($node,
		"SELECT unpersisted_ranges FROM narad.groups WHERE topic = 'failing'::regclass") eq '0' }),
		'... the worker does its other duties');
	ok(poll_until('it fails again', sub { $failures->() > 1 }), '... and tries it again');
	$idle->rows('SELECT 1');
	unlike(join(' ', map { @$_ } @{ $idle->{rows} }), qr/Asynchronous/, '... nothing was sent so far');
	$node->safe_psql('postgres', q{SELECT narad_test.stop_release('notify-commit')});
	ok(notified($idle, 'failing'), '... until it succeeds');
}
$idle->quit;
# So many and no more.
is($one->try(q{
DO $$ BEGIN
	PERFORM narad.consume('many', 1000);
	FOR i IN 1 .. 1024 LOOP PERFORM narad.consume('many', notify => 'c' || i); END LOOP;
END $$}), '00000', '1024 tokens');
is($one->try("SELECT narad.consume('many', notify => 'one more')"), '53200', '... are the most of a group');
is($one->try("SELECT narad.consume('many', notify => 'c1')"), '00000', '... one may be left again');
$one->rows('DISCARD ALL');
is($one->try("SELECT narad.consume('many', notify => 'one more')"), '00000', '... and those of a client that is gone give way');
is(tokens_of('many'), '1024|1', '... one each');
$node->safe_psql('postgres', 'DROP TABLE many');

# In a pipeline a call that acknowledges and sleeps shares its transaction with what
# came before, and its fate; or it is the first, and has one of its own.
topic('pipeline');
produce('pipeline', 2);
$node->safe_psql('postgres', "CREATE TABLE got AS SELECT receipt, msg_offset FROM narad.consume('pipeline', 2)");
foreach my $offset (0, 1)
{
	my $script = PostgreSQL::Test::Utils::tempdir() . '/pipeline.sql';

	append_to_file($script, join("\n", '\startpipeline', $offset == 0 ? 'SELECT 1;' : (),
		"SELECT narad.consume('pipeline', wait => '10 ms',"
		  . " ack => ARRAY(SELECT receipt FROM got WHERE msg_offset = $offset));",
		'SELECT 1 / 0;', '\endpipeline', ''));
	command_fails([ 'pgbench', '-n', '-M', 'extended', '-t', 1, '-f', $script, '-h', $node->host,
		'-p', $node->port, 'postgres' ], 'a pipeline fails');
	is(one_value($node, "SELECT coalesce(reason, 'not settled') FROM narad.try_ack(ARRAY(SELECT receipt FROM got"
		  . " WHERE msg_offset = $offset))"), $offset == 0 ? 'not settled' : 'settled',
		'... and with it what was acknowledged in the middle, not at the beginning');
}

# A standby.
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('wait_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
topic('far');
$node->wait_for_catchup($standby);
my $reader = narad_session($standby);
$reader->send("SELECT value FROM narad.fetch('far', 0, 0, wait => '60 s')");
produce('far');
is($reader->finish, '00000', 'a standby waits for what is replayed');
is($reader->{rows}[0][0], '1', '... and reads it');
is($reader->try("SELECT narad.consume('far', wait => '1 s')"), '25006', '... but consumes nothing');
$reader->quit;
$standby->stop;

# The end of the server ends every wait.
topic('ends');
my @calls = ("SELECT narad.consume('ends', wait => '60 s');", "CALL narad.wait('ends', '1 hour');",
	"SELECT narad.fetch('ends', 0, 0, wait => '60 s');");
foreach my $mode ('fast', 'immediate')
{
	my @asleep = map { start_waiters(40, $_) } @calls;
	ok(until_waiting(120), 'waiters of each kind sleep');
	ok($node->stop($mode), "a $mode shutdown does not wait for them");
	foreach (@asleep)
	{
		IPC::Run::finish($_->{run});
		like(${ $_->{err} }, qr/terminating connection|server closed the connection/, '... they are told');
	}
	$node->start;
}
foreach my $call (@calls)
{
	$waiters = start_waiters(3, $call);
	ok(until_waiting(3), 'three wait');
	my @pids = split(/\n/, one_value($node, 'SELECT pid FROM narad.waiters'));
	my $postmaster = $node->{_pid};
	push @pids, $postmaster;
	kill('KILL', $postmaster);
	IPC::Run::finish($waiters->{run});
	ok(poll_until('the waiters are gone', sub { !grep { kill(0, $_) } @pids }),
		'... and go with the postmaster');
	$node->{_pid} = undef;
	start_after_kill($node, @pids);
}
produce('ends');
is(one_value($node, "SELECT msg_offset, deliveries FROM narad.consume('ends', 10)"), '0|1',
	'after all these ends a message goes to who asks');
is(one_value($node, 'SELECT count(*) FROM narad.leases'), '1', '... and that is the only lease');

# Without any worker.
$node->append_conf('postgresql.conf', 'max_worker_processes = 1');
$node->restart;
topic('alone');
produce('alone');
$one = narad_session($node);
$one->rows("SELECT * FROM narad.consume('alone', visibility_timeout => '200 ms')");
is($one->try("SELECT deliveries FROM narad.consume('alone', wait => '60 s', visibility_timeout => '200 ms')"),
	'00000', 'a lease ends though there is no worker');
is($one->{rows}[0][0], '2', '... and the waiter gets the message');

$one->quit;
$two->quit;
$node->stop;
log_is_clean($node, 'the log tells of no crash', kills => 1);
done_testing();
