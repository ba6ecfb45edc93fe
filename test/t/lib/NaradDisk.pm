# A disk that fails on demand: test/fail_io/fail_io.c, preloaded into a server.
#
# Copyright (c) 2026, the Narad authors

package NaradDisk;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

use NaradTest;

our @EXPORT = qw(start_on_disk break_disk mend_disk);

my $control;

# Starts a node on such a disk; skips the whole test where there is none.
sub start_on_disk
{
	my ($node) = @_;
	my $inputs = $ENV{NARAD_INPUTS} || "$FindBin::RealBin/../..";
	my $dir = PostgreSQL::Test::Utils::tempdir_short;
	my $library = "$dir/fail_io.so";

	plan skip_all => 'fails calls by their names on Linux' unless $^O eq 'linux';
	plan skip_all => 'needs a C compiler'
	  if system('cc', '-O2', '-shared', '-fPIC', '-o', $library, "$inputs/test/fail_io/fail_io.c", '-ldl') != 0;
	$control = "$dir/fail_io.now";
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{FAIL_IO} = $control;
	$node->start;
	return;
}

# From now on calls of a kind fail for the file of a topic, with an errno; those
# of further kinds with theirs, unless the call is of one before.
sub break_disk
{
	my ($node, $errno, $kind, $t, @further) = @_;
	my $path = one_value($node, "SELECT pg_relation_filepath('$t')");
	append_to_file("$control.new", join('', map { "$_->[0] $_->[1] /$path\n" } ([ $errno, $kind ], @further)));
	rename("$control.new", $control) or die $!;
	return;
}

# Calls work again.
sub mend_disk { unlink($control) or die $!; return; }

1;
