# Copyright (c) 2026, the Narad authors
#
# I2, I4, I5: a pooler in transaction mode gives each transaction another
# session; a receipt is a right of whoever has it, so consume, ack, nack and
# extend may each be in another one, and nothing of a client stays behind in a
# session.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $pgbouncer = (grep { -x $_ } qw(/usr/sbin/pgbouncer /usr/bin/pgbouncer))[0];
plan skip_all => 'pgbouncer is not installed' unless defined $pgbouncer;

my $node = narad_node('pooled');
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
SELECT narad.create_topic('jobs', visibility_timeout => '1 hour');
CREATE TABLE effect (msg_offset bigint);
SELECT count(*) FROM narad.produce_batch('jobs', ARRAY(SELECT to_jsonb(i) FROM generate_series(0, 199) i));
});

# ---------------------------------------------------------------- the pooler

my $dir = PostgreSQL::Test::Utils::tempdir_short;
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $user = $node->safe_psql('postgres', 'SELECT current_user');
append_to_file("$dir/users.txt", "\"$user\" \"\"\n");
append_to_file("$dir/pgbouncer.ini", join("\n",
		'[databases]',
		'postgres = host=' . $node->host . ' port=' . $node->port,
		'[pgbouncer]',
		"unix_socket_dir = $dir", "listen_port = $port", 'auth_type = trust',
		"auth_file = $dir/users.txt", "pidfile = $dir/pid",
		"logfile = $dir/log", 'pool_mode = transaction',
		'default_pool_size = 2', 'ignore_startup_parameters = extra_float_digits',
		'server_round_robin = 1', 'admin_users = ' . $user, ''));
system_or_bail($pgbouncer, '-q', '-d', "$dir/pgbouncer.ini");
END { system_log('sh', '-c', "kill `cat $dir/pid`") if $dir && -e "$dir/pid"; }

my $pooled = "host=$dir port=$port dbname=postgres user=$user";

sub ask
{
	my ($sql) = @_;
	my ($out, $err);
	run_log([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $pooled, '-f', '-' ],
		'<', \$sql, '>', \$out, '2>', \$err);
	diag($err) if $err;
	chomp $out;
	return $out;
}

ok(poll_until('the pooler answers', sub { ask('SELECT 1') eq '1' }), 'the pooler answers');

# ------------------------------------------------ each call in another session

# One client, whose transactions meet both server sessions, since others keep
# these busy.
my $others = "$dir/others.sql";
append_to_file($others, "SELECT pg_sleep(0.005);\n");
my $busy = IPC::Run::start([ 'pgbench', '-n', '-c', '3', '-T', '300', '-f', $others, $pooled ],
	'>', '/dev/null', '2>', '/dev/null');
my %sessions;
my $stale = 0;
for my $n (1 .. 40)
{
	my $out = ask("SELECT pg_backend_pid();\n"
		  . "SELECT receipt AS r FROM narad.consume('jobs') \\gset\n"
		  . "SELECT narad.extend(:'r', '2 hours');\n"
		  . "BEGIN;\nINSERT INTO effect SELECT msg_offset FROM narad.leases;\n"
		  . "SELECT narad.ack(:'r');\nCOMMIT;\nSELECT pg_backend_pid();\n"
		  . "SELECT count(*) FROM narad.try_ack(ARRAY[:'r']) WHERE accepted;");
	my @lines = split /\n/, $out;
	$sessions{$_} = 1 for grep { /^\d{2,}$/ } @lines;
	$stale++ if $lines[-1] eq '0';
}
$busy->kill_kill;
is($stale, 40, 'I4: acked receipts are void, in whichever session');
cmp_ok(scalar(keys %sessions), '>', 1, 'several server sessions were used');
is($node->safe_psql('postgres', 'SELECT count(DISTINCT msg_offset) FROM effect'), 40,
	'I2: each message was taken once');
is($node->safe_psql('postgres', 'SELECT count(*) FROM narad.leases'), 0, 'no lease is left');

# Many clients at once, more than server sessions.
my $script = "$dir/work.sql";
append_to_file($script, "BEGIN;\n"
	  . "SELECT coalesce((SELECT receipt FROM narad.consume('jobs')), '') AS r \\gset\n"
	  . "COMMIT;\nBEGIN;\nINSERT INTO effect SELECT -1 WHERE :r <> '';\n"
	  . "SELECT narad.ack(ARRAY(SELECT :r::text WHERE :r <> ''));\nCOMMIT;\n");
my $result = run_log([ 'pgbench', '-n', '-M', 'extended', '-c', '8', '-t', '25', '-f', $script, $pooled ]);
ok($result, 'eight clients share two sessions');
is($node->safe_psql('postgres', 'SELECT count(*) FROM effect WHERE msg_offset = -1'), 160,
	'I5: every ack stands with its effect');
is($node->safe_psql('postgres',
		"SELECT frontier FROM narad.groups WHERE topic = 'jobs'::regclass"), 199,
	'everything is settled');

# A client that leaves in its transaction: what it took comes back.
$node->safe_psql('postgres', "SELECT narad.produce('jobs', '\"last\"')");
ask("BEGIN;\nSELECT count(*) FROM narad.consume('jobs');\n");
ok(poll_until('the lease is given back', sub {
	ask("SELECT deliveries FROM narad.consume('jobs')") eq '2' }),
	'what a client took that left is delivered again');

$node->stop;
log_is_clean($node, 'nothing bad in the log');
done_testing();
