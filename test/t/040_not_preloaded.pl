# Copyright (c) 2026, the Narad authors
#
# I1: a server started without shared_preload_libraries = 'narad' says clearly
# what is wrong (55000), damages no topic, and all is there when it is back.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('preload', conf => ["shared_preload_libraries = ''"]);

# Each statement fails with 55000, and says what to do.
sub refused
{
	my ($s, @statements) = @_;
	foreach my $sql (@statements)
	{
		is($s->try($sql), '55000', "refused: $sql") or diag($s->{error});
		like($s->{error}, qr/shared_preload_libraries/, '... for a reason');
	}
	return;
}

sub preload
{
	my ($libraries) = @_;
	$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "'$libraries'");
	return;
}

# adjust_conf changes every line of that name, so there may be several.
$node->start;
my $s = narad_session($node);
refused($s, 'CREATE EXTENSION narad', "LOAD 'narad'");
is($s->value("SELECT count(*) FROM pg_extension WHERE extname = 'narad'"), 0, 'nothing is left behind');
is($s->value('SELECT 1'), 1, 'the session goes on');
$s->quit;
$node->stop;

preload('narad');
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
CREATE TABLE heap_table (a int);
SELECT narad.create_topic('t', partitions => 2, segment_size => '256kB');
CREATE TABLE by_hand (LIKE narad.topic_template, more int) USING narad;
INSERT INTO by_hand (value, more) VALUES ('1', 1);
SELECT count(*) FROM narad.produce_batch('t',
	ARRAY(SELECT jsonb_build_object('i', i, 'pad', repeat(md5(i::text), 50)) FROM generate_series(1, 300) i));
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('t', 100);
});
my $content = q{SELECT count(*), md5(string_agg(t::text, '' ORDER BY partition, msg_offset)) FROM t};
my $before = one_value($node, $content);
$node->stop;

preload('');
$node->start;
$s = narad_session($node);
refused($s, 'SELECT * FROM t', 'SELECT * FROM by_hand', "INSERT INTO t (value) VALUES ('1')",
	"SELECT narad.produce('t', '1')", "SELECT * FROM narad.consume('t')",
	"SELECT narad.ack('x')", 'TRUNCATE t', "SELECT narad.create_topic('u')");
# The server's own duties pass by.
is($s->try('SELECT * FROM heap_table'), '00000', 'other tables work');
is($s->try('VACUUM heap_table'), '00000', 'and are vacuumed');
is($s->value(q{SELECT count(*) FROM pg_class WHERE relname IN ('t', 'by_hand')}), 2,
	'the catalogs can be read');
is($s->try('CHECKPOINT'), '00000', 'checkpoints work');
$s->quit;
$node->stop;

preload('narad');
$node->start;
is(one_value($node, $content), $before, 'with the library back every message is there');
is(one_value($node, q{SELECT count(*), count(DISTINCT (partition, msg_offset))
FROM narad.consume('t', 1000)}), '200|200', 'and what was acked stays so');
is(one_value($node, q{SELECT value, more FROM by_hand}), '1|1', 'also in a table made by hand');

# WAL of ours in the way of a start without the library: it stops, unharmed.
$node->safe_psql('postgres', q{SELECT count(*) FROM narad.produce_batch('t',
	ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 50) i))});
$before = one_value($node, $content);
$node->stop('immediate');
preload('');
is($node->start(fail_ok => 1), 0, 'recovery without the library is refused');
like(slurp_file($node->logfile), qr/resource manager with ID \d+ not registered/, '... for a reason');
preload('narad');
$node->start;
is(one_value($node, $content), $before, 'and goes through with it');
is(one_value($node, q{SELECT count(*) FROM narad.consume('t', 1000)}), '250', 'to the last message');
$node->stop;
log_is_clean($node, 'the log is clean');
done_testing();
