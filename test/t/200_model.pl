# Copyright (c) 2026, the Narad authors
#
# I1, I2, I3, I4, I5, I6, I7, I8, I12: whatever many sessions do, with
# transactions and savepoints that overlap, some asleep until there is a message,
# backends killed and the server stopped in between, each answer is one that the
# model allows.  By key, with delays, with dead letters, once only, under caps, and
# while retention drops what is settled, or too much.
#
# NARAD_MODEL_OPERATIONS: how many statements (200000).  NARAD_SEED: of the
# random choices; the same in each run, so that what fails was changed and not
# drawn, or "random"; printed, and replayable.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $operations = $ENV{NARAD_MODEL_OPERATIONS} || 200000;
my $seed = $ENV{NARAD_SEED} || 20261130;
$seed = int(rand(1 << 30)) if $seed eq 'random';
my $restarts = int($operations / 20000);

my $node = narad_node('model', conf => [
	'max_connections = 40',
	'max_prepared_transactions = 10',
	"narad.max_wait = '1h'",
	"narad.hold_time = '20ms'",
	"narad.frontier_flush_interval = '200ms'",
	"narad.frontier_write_interval = '50ms'"]);
$node->start;

note("NARAD_SEED=$seed NARAD_MODEL_OPERATIONS=$operations");
my ($told, $errors) = run_command(['/usr/bin/python3', '-B',
	"$FindBin::RealBin/../model/model.py",
	'--dsn', $node->connstr('postgres'),
	'--operations', $operations, '--seed', $seed,
	'--restarts', $restarts,
	'--pg-ctl', 'pg_ctl',
	'--data', $node->data_dir, '--log', $node->logfile]);
ok($told =~ /^agreed: /m, "the server agrees with the model, seed $seed")
  or diag("$errors\n$told");

# The server was restarted behind the object's back.
$node->_update_pid(1);
$node->stop;
log_is_clean($node, "nothing bad in the log");
done_testing();
