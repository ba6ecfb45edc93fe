EXTENSION = narad
MODULE_big = narad
DATA = narad--1.0.sql
PGFILEDESC = "narad - log-backed queues"

here := $(dir $(lastword $(MAKEFILE_LIST)))

OBJS = \
	src/narad.o \
	src/narad_rmgr.o \
	src/narad_shmem.o \
	src/base/base_array.o \
	src/base/base_burn.o \
	src/base/base_extend.o \
	src/base/base_guc.o \
	src/base/base_lock.o \
	src/base/base_malloc.o \
	src/base/base_memory.o \
	src/base/base_start.o \
	src/base/base_stop.o \
	src/base/base_wait.o \
	src/log/log_append.o \
	src/log/log_carry.o \
	src/log/log_ddl.o \
	src/log/log_events.o \
	src/log/log_find.o \
	src/log/log_freeze.o \
	src/log/log_gate.o \
	src/log/log_group.o \
	src/log/log_hull.o \
	src/log/log_meta.o \
	src/log/log_page.o \
	src/log/log_partition.o \
	src/log/log_producer.o \
	src/log/log_read.o \
	src/log/log_record.o \
	src/log/log_retain.o \
	src/log/log_scan.o \
	src/log/log_segment.o \
	src/log/log_status.o \
	src/log/log_tableam.o \
	src/log/log_topic.o \
	src/log/log_vacuum.o \
	src/log/log_verify.o \
	src/log/log_verify_data.o \
	src/log/log_verify_directory.o \
	src/log/log_xact.o \
	src/log/log_xlog.o \
	src/queue/queue_await.o \
	src/queue/queue_consume.o \
	src/queue/queue_deadletter.o \
	src/queue/queue_dedup.o \
	src/queue/queue_dirty.o \
	src/queue/queue_due.o \
	src/queue/queue_freeze.o \
	src/queue/queue_group.o \
	src/queue/queue_key.o \
	src/queue/queue_lease.o \
	src/queue/queue_load.o \
	src/queue/queue_page.o \
	src/queue/queue_producer.o \
	src/queue/queue_receipt.o \
	src/queue/queue_retain.o \
	src/queue/queue_saved.o \
	src/queue/queue_seek.o \
	src/queue/queue_set.o \
	src/queue/queue_serve.o \
	src/queue/queue_settle.o \
	src/queue/queue_shard.o \
	src/queue/queue_state.o \
	src/queue/queue_suspect.o \
	src/queue/queue_token.o \
	src/queue/queue_topic.o \
	src/queue/queue_verify.o \
	src/queue/queue_wait.o \
	src/queue/queue_xact.o \
	src/worker/worker_deadletter.o \
	src/worker/worker_dedup.o \
	src/worker/worker_frontier.o \
	src/worker/worker_launcher.o \
	src/worker/worker_main.o \
	src/worker/worker_notify.o \
	src/worker/worker_retention.o \
	src/worker/worker_save.o \
	src/worker/worker_usercode.o \
	src/worker/worker_utility.o \
	src/sql/sql_admin.o \
	src/sql/sql_args.o \
	src/sql/sql_consume.o \
	src/sql/sql_fetch.o \
	src/sql/sql_group.o \
	src/sql/sql_produce.o \
	src/sql/sql_settle.o \
	src/sql/sql_topic.o \
	src/sql/sql_view.o \
	src/sql/sql_wait.o

ALL_H = $(wildcard $(here)src/*.h $(here)src/*/*.h)

PG_CPPFLAGS = -I$(srcdir)/src

# A spec with the line "# needs: stop points" runs under "make test" only:
# those points are compiled into the testing library, which is never installed.
SPECS_PLAIN = $(shell grep -L '^\# needs: stop points' $(here)test/specs/*.spec 2>/dev/null)

REGRESS = $(patsubst $(here)sql/%.sql,%,$(sort $(wildcard $(here)sql/*.sql)))
REGRESS_OPTS = --load-extension=narad
ISOLATION = $(patsubst $(here)test/specs/%.spec,%,$(sort $(SPECS_PLAIN)))
ISOLATION_OPTS = --inputdir=test --outputdir=output_iso --load-extension=narad
TAP_TESTS = $(if $(wildcard $(here)test/t/*.pl),1)
PROVE_TESTS = test/t/*.pl

EXTRA_CLEAN = build output_iso results tmp_check log regression.diffs regression.out

PG_CONFIG ?= $(firstword $(wildcard /usr/lib/postgresql/15/bin/pg_config) pg_config)
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifneq ($(wildcard $(PGXS)),)
include $(PGXS)

# PostgreSQL may be built without --enable-depend: a changed header, or changed
# flags, rebuild everything.
$(OBJS) $(OBJS:.o=.bc): $(ALL_H) $(here)Makefile
else
all install installcheck uninstall clean:
	@echo "PostgreSQL's PGXS was not found: install postgresql-server-dev-15, or set PG_CONFIG" >&2
	@exit 1
endif

.DEFAULT_GOAL := all
.PHONY: demo indent lint test unit

demo:
	$(here)demo/run $(DEMO_FILE)

indent:
	$(here)test/lint/indent.sh

lint:
	$(here)test/run lint

test:
	$(here)test/run

unit:
	$(here)test/run unit
