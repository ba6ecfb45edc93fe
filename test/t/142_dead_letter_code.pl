# Copyright (c) 2026, the Narad authors
#
# I1: a dead letter is not lost, and moved in the end, whatever the functions of
#     its dead-letter topic do.
#
# Such functions are other people's code in the worker, which serves everybody:
# they cannot hold it, nor keep it from stopping; they have their own owner's
# rights; and they leave nothing behind in its session.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

plan skip_all => 'the library has no stop points' unless $ENV{NARAD_TESTING};

# Plain acks are written late, so that only the clean stop can have done it.
my $node = narad_node('code', conf => [ 'autovacuum = off',
	"narad.frontier_write_interval = '10s'", "narad.frontier_flush_interval = '10s'" ]);
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
CREATE ROLE mallory; CREATE ROLE alice;
GRANT CREATE ON SCHEMA public TO mallory, alice;
-- Cannot be cancelled.
CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		BEGIN
			PERFORM pg_sleep(3600);
		EXCEPTION WHEN query_canceled THEN
		END;
	END LOOP;
END $$;
});

$node->safe_psql('postgres', slurp_file("$FindBin::RealBin/../narad_test/narad_test.sql"));

# A topic with messages 0 .. $n - 1 and its dead-letter topic, which belongs to
# another role if one is given.
sub fresh_topic
{
	my ($t, $n, $owner) = @_;
	$node->safe_psql('postgres', "SELECT narad.create_topic('${t}_letters');"
		  . ($owner ? " ALTER TABLE ${t}_letters OWNER TO $owner;" : '')
		  . " SELECT narad.create_topic('$t', max_deliveries => 1, dead_letter_topic => '${t}_letters',"
		  . " visibility_timeout => '10 min');"
		  . " SELECT count(*) FROM narad.produce_batch('$t',"
		  . " ARRAY(SELECT to_jsonb(i) FROM generate_series(0, $n - 1) i))");
	return;
}

# Has a function, by its body, run before each dead letter is inserted.
sub trigger_on
{
	my ($t, $owner, $body) = @_;
	$node->safe_psql('postgres', "SET ROLE $owner;"
		  . " CREATE FUNCTION on_$t() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN $body END \$\$;"
		  . " CREATE TRIGGER t BEFORE INSERT ON ${t}_letters FOR EACH ROW EXECUTE FUNCTION on_$t()");
	return;
}

sub hang_on
{
	$node->safe_psql('postgres',
		"CREATE TRIGGER t BEFORE INSERT ON $_[0]_letters FOR EACH ROW EXECUTE FUNCTION hang()");
	return;
}

sub nack_all
{
	return one_value($node, "SELECT count(narad.nack(receipt)) FROM narad.consume('$_[0]', 10)");
}

sub letters
{
	return one_value($node, "SELECT coalesce(string_agg(value::text, ' ' ORDER BY value), '') FROM $_[0]_letters");
}

sub given_up
{
	my ($t, $n) = @_;
	return poll_until("$n messages of $t are given up", sub {
		one_value($node, "SELECT sum(dead_lettered) >= $n AND sum(dead_letters_waiting) = 0"
			  . " FROM narad.groups WHERE topic = '$t'::regclass") eq 't' });
}

sub worker_is
{
	my ($what) = @_;
	return one_value($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'narad worker' AND $what") eq '1';
}

sub worker_hangs
{
	return poll_until('the worker hangs', sub { worker_is("wait_event = 'PgSleep'") });
}

sub worker_pid
{
	return one_value($node, "SELECT pid FROM pg_stat_activity WHERE application_name = 'narad worker'");
}

my $offset;

sub logged
{
	my ($what) = @_;
	return poll_until("the log says $what", sub { slurp_file($node->logfile, $offset) =~ $what });
}

# ---- what they leave ----------------------------------------------------------------

fresh_topic('leaves', 1);
fresh_topic('finds', 1);
trigger_on('leaves', 'postgres', q{
	PERFORM pg_advisory_lock(4242), pg_advisory_lock_shared(4243);
	PERFORM set_config('work_mem', '1234kB', false), set_config('session_replication_role', 'replica', false);
	PERFORM setseed(0.5);
	RETURN NEW;});
trigger_on('finds', 'postgres', q{
	NEW.key := concat_ws(' ', current_setting('work_mem') = '1234kB', current_setting('session_replication_role'),
		random() = ANY (current_setting('test.random')::float8[]));
	RETURN NEW;});
my $random = one_value($node, 'SELECT setseed(0.5); SELECT array_agg(random()) FROM generate_series(1, 100)');
$random =~ s/^\s+//;
$node->safe_psql('postgres', "ALTER FUNCTION on_finds() SET test.random = '$random'");
nack_all('leaves');
ok(given_up('leaves', 1), 'a function locks, sets and seeds');
is(one_value($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), '0', 'its locks are given up');
nack_all('finds');
given_up('finds', 1);
is(one_value($node, 'SELECT key FROM finds_letters'), 'f origin f', 'the next one finds nothing of its session');

$offset = -s $node->logfile;
fresh_topic('fails', 1);
trigger_on('fails', 'postgres', q{PERFORM pg_advisory_lock(4242); RAISE 'refused';});
nack_all('fails');
logged(qr/ERROR:  refused/);
ok(poll_until('the lock is given up', sub {
	one_value($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") eq '0' }),
	'those of one that fails, too');
$node->safe_psql('postgres', 'DROP TABLE fails, fails_letters');

# ---- whose rights -------------------------------------------------------------

# Of her own: what she may do to others' topics is what she may do herself.
$offset = -s $node->logfile;
$node->safe_psql('postgres', q{
SET ROLE mallory;
SELECT narad.create_topic('mine_letters');
SELECT narad.create_topic('mine', max_deliveries => 1, dead_letter_topic => 'mine_letters');
SELECT count(*) FROM narad.produce_array('mine', '[0]');
CREATE FUNCTION climb() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'RESET SESSION AUTHORIZATION';
	EXECUTE 'ALTER ROLE mallory SUPERUSER';
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER climb AFTER INSERT ON mine_letters DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION climb()});
nack_all('mine');
ok(logged(qr/cannot fire deferred trigger within security-restricted operation/),
	'a deferred trigger does not run as the worker');
$node->safe_psql('postgres', q{SET ROLE mallory; DROP TRIGGER climb ON mine_letters;
CREATE TRIGGER climb BEFORE INSERT ON mine_letters FOR EACH ROW EXECUTE FUNCTION climb()});
ok(logged(qr/cannot set parameter "session_authorization" within security-restricted operation/),
	'nor does one leave its rights behind');
$node->safe_psql('postgres', 'SET ROLE mallory; DROP TRIGGER climb ON mine_letters');
ok(given_up('mine', 1), 'and the message is moved in the end');
is(letters('mine'), '0', 'once');

# As dead-letter topic of another's: not that one's rights.
$offset = -s $node->logfile;
fresh_topic('boss', 1, 'alice');
$node->safe_psql('postgres', 'GRANT SELECT, UPDATE ON boss TO alice');
trigger_on('boss', 'alice', q{NEW.key := current_user; EXECUTE 'ALTER ROLE alice SUPERUSER'; RETURN NEW;});
one_value($node, "SET ROLE alice; SELECT count(narad.nack(receipt)) FROM narad.consume('boss')");
ok(logged(qr/ERROR:  (must be superuser|permission denied) .*moving offset 0 of partition 0 of topic "boss"/s),
	'functions of a dead-letter topic have not the rights of the topic');
$node->safe_psql('postgres', 'SET ROLE alice; DROP FUNCTION on_boss() CASCADE');
trigger_on('boss', 'alice', 'NEW.key := current_user; RETURN NEW;');
ok(given_up('boss', 1), 'without them the message is moved');
is(one_value($node, 'SELECT value, key FROM boss_letters'), '0|alice', 'in the name of who owns the dead letters');
is(one_value($node, "SELECT count(*) FROM pg_roles WHERE rolsuper AND rolname IN ('alice', 'mallory')"), '0',
	'nobody was raised');

# Who may not act for that owner has nothing moved there.
$offset = -s $node->logfile;
fresh_topic('given', 1, 'alice');
fresh_topic('passing', 1);
$node->safe_psql('postgres', 'ALTER TABLE given OWNER TO mallory');
nack_all('given');
ok(logged(qr/owner of the topic does not have the privileges of the owner of dead-letter topic "given_letters"/),
	'a topic that was given away is not moved from in the name of another');
nack_all('passing');
ok(given_up('passing', 1), 'which holds up no other');
is(one_value($node, "SELECT count(*) FROM narad.consume('given', 10)"), '0', 'nor is the message delivered');
$node->safe_psql('postgres', 'GRANT alice TO mallory');
ok(given_up('given', 1), 'it is moved when it may be');
is(letters('given'), '0', 'once');

# ---- moves that take long ------------------------------------------------------------

# Each is cancelled, and between two of them the other duties have their turn.
$node->safe_psql('postgres', q{
CREATE FUNCTION doze() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3600); END $$;
SELECT narad.create_topic('told')});
fresh_topic($_, 1) foreach ('slow', 'slower');
$node->safe_psql('postgres', "CREATE TRIGGER t BEFORE INSERT ON ${_}_letters FOR EACH ROW EXECUTE FUNCTION doze()")
  foreach ('slow', 'slower');
$node->safe_psql('postgres', "SELECT FROM narad.consume('told', notify => 'told', notify_ttl => '1 hour')");
$offset = -s $node->logfile;
nack_all('slow');
worker_hangs();
nack_all('slower');
$node->safe_psql('postgres', "SELECT narad_test.stop_arm('notify-commit'); SELECT narad.produce('told', '1')");
ok(logged(qr/topic "slow".*topic "slower"/s), 'moves that take long are cancelled');
$node->safe_psql('postgres', "SELECT narad_test.stop_release('notify-commit')");
like(slurp_file($node->logfile, $offset), qr/topic "slow",.*"notify-commit".*topic "slower",/s,
	'and other duties have their turn between two of them');
$node->safe_psql('postgres', "DROP TABLE slow, slow_letters, slower, slower_letters");

# ---- moves that cannot be cancelled ------------------------------------------------

# The time of the code is over, and with it the worker.
$offset = -s $node->logfile;
fresh_topic('endless', 1);
fresh_topic('beside', 2);
hang_on('endless');
nack_all('endless');
worker_hangs();
my $pid = worker_pid();
nack_all('beside');
ok(given_up('beside', 2), 'functions that cannot be cancelled do not hold the moves of others')
  or die 'the worker hangs';
isnt(worker_pid(), $pid, 'by another worker');
like(slurp_file($node->logfile, $offset),
	qr/FATAL:  terminating background worker.*moving offset 0 of partition 0 of topic "endless".*worker ends in functions of a dead-letter topic/s,
	'the log says why');
is(one_value($node, "SELECT count(*) FROM narad.consume('endless', 10)"), '0', 'the message is not delivered');
is(one_value($node, "SELECT sum(dead_letters_waiting) FROM narad.groups WHERE topic = 'endless'::regclass"), '1', 'it waits');

# Another letter is tried after 1 and 3 s; as long as that, it is not.
fresh_topic('ticking', 1);
trigger_on('ticking', 'postgres', q{RAISE 'tick';});
nack_all('ticking');
logged(qr/(ERROR:  tick.*){3}/s);
is(scalar(() = slurp_file($node->logfile, $offset) =~ /worker ends in functions/g), 1, 'and has ended one worker only');
$node->safe_psql('postgres', 'DROP TABLE ticking, ticking_letters');

# So nobody has to wait to take the function away.
$node->safe_psql('postgres', 'DROP TRIGGER t ON endless_letters');

# A request to stop.
fresh_topic('stopped', 2);
hang_on('stopped');
one_value($node, "SELECT count(narad.nack(receipt)) FROM narad.consume('stopped')");
worker_hangs();
$pid = worker_pid();
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok(poll_until('the worker has left', sub { worker_pid() ne $pid }), 'a worker in such functions can be terminated')
  or die 'the worker hangs';

# A fast shutdown, with an ack that is not on its page.
fresh_topic('acked', 2);
worker_hangs();
is(one_value($node, "SELECT narad.ack(receipt) FROM narad.consume('acked')"), '', 'a plain ack');
ok($node->stop('fast', fail_ok => 1), 'the server stops');
$node->start;
is(one_value($node, "SELECT string_agg(msg_offset::text, ' ') FROM narad.consume('acked', 10)"), '1',
	'and the last acks were written');
$node->safe_psql('postgres', 'DROP TRIGGER t ON stopped_letters');
nack_all($_) foreach ('stopped', 'endless');
ok(given_up('stopped', 2) && given_up('endless', 1), 'all messages are moved in the end');
is(letters('stopped') . '|' . letters('endless'), '0 1|0', 'once each');

log_is_clean($node, 'log');
$node->stop;
done_testing();
