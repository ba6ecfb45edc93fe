# Copyright (c) 2026, the Narad authors
#
# I3: a record of an aborted transaction stays invisible to who comes to its page
# when retention has freed the segment before VACUUM came to it, and the
# server has forgotten the transaction since.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

plan skip_all => 'needs a library with stop points' unless $ENV{NARAD_TESTING};

my $inputs = $ENV{NARAD_INPUTS} || "$FindBin::RealBin/../..";
my $node = narad_node('freed', conf => [
	'autovacuum = off', 'autovacuum_freeze_max_age = 2000000000', 'fsync = off' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad');
$node->safe_psql('postgres', slurp_file("$inputs/test/narad_test/narad_test.sql"));

# The first page has nothing but records that were rolled back.
$node->safe_psql('postgres', q{
SELECT narad.create_topic('t', segment_size => '256kB');
CREATE FUNCTION fill(what text, n int) RETURNS void LANGUAGE sql AS $$
	INSERT INTO t (value) SELECT to_jsonb(rpad(what || i || '.', 900, 'x')) FROM generate_series(1, n) i $$;
});
$node->safe_psql('postgres', q{BEGIN; SELECT fill('bad', 20); ROLLBACK;});
my $xid = one_value($node, q{BEGIN; SELECT fill('bad', 1); SELECT pg_current_xact_id(); ROLLBACK;});
$xid =~ s/\s//g;
$node->safe_psql('postgres', q{SELECT fill('good', 400)});
$node->safe_psql('postgres', 'SELECT narad_test.burn_xids(3000000)');
$node->safe_psql('postgres', 'CREATE TABLE burnt ()');
is(one_value($node, "SELECT pg_xact_status('$xid'::xid8)"), 'aborted', 'the server knows the transaction');

# A scan has found the first segment in its place, and is about to read a page.
my $reader = narad_session($node);
$reader->backend_pid;
$node->safe_psql('postgres', q{SELECT narad_test.stop_arm('scan-page')});
$reader->send(q{SELECT count(*), count(*) FILTER (WHERE value::text LIKE '"bad%') FROM t});
$node->safe_psql('postgres', q{SELECT narad_test.stop_wait('scan-page')});

# It is freed, and nobody asks for the status of its records any more.
$node->safe_psql('postgres', q{SELECT narad.alter_topic('t', retention => '1 ms'); SELECT narad.apply_retention('t');});
is(one_value($node, q{SELECT earliest = end_offset FROM narad.offsets('t')}), 't', 'all is dropped');
$node->safe_psql('postgres', q{UPDATE pg_database SET datallowconn = true WHERE datname = 'template0'});
$node->safe_psql($_, 'VACUUM FREEZE') foreach qw(postgres template1 template0);
is(one_value($node, "SELECT pg_xact_status('$xid'::xid8)"), '', 'the server has forgotten the transaction');
$node->safe_psql('postgres', q{SELECT narad_test.stop_release('scan-page')});
is($reader->finish, '00000', 'the scan ends');
is(join('|', @{ $reader->{rows}[0] }), '0|0', 'and has seen nothing that was rolled back');
like($reader->{errors}, qr/retention has dropped records of topic "t"/, 'it says what it lost');
$reader->quit;
$node->stop;
log_is_clean($node, 'the log is clean');
done_testing();
