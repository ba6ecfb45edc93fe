#!/usr/bin/perl
# Totals by section and maintainer from a file of JSON lines: the number of
# objects and the sum of their installed sizes.
use strict;
use warnings;
use JSON::PP;

my $json = JSON::PP->new->utf8;
my (%count, %size);
while (my $line = <STDIN>)
{
	my $object = $json->decode($line);
	my $key = join "\t", map { $object->{$_} // '(none)' } qw(section maintainer);
	$count{$key}++;
	$size{$key} += $object->{installed_size} // 0;
}
binmode STDOUT, ':utf8';
print "$_\t$count{$_}\t$size{$_}\n" foreach keys %count;
