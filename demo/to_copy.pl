#!/usr/bin/perl
# JSON lines to COPY's text format: a key and a value, separated by a tab. The
# key is the source package, else the package, else there is none.
use strict;
use warnings;

while (my $value = <STDIN>)
{
	chomp $value;
	next if $value =~ /^\s*\z/;
	my ($key) = $value =~ /"source": *"([^"\\]*)"/;
	($key) = $value =~ /"package": *"([^"\\]*)"/ unless defined $key;
	$key = '\N' unless defined $key;
	$value =~ s/\\/\\\\/g;
	$value =~ s/\t/\\t/g;
	print "$key\t$value\n";
}
