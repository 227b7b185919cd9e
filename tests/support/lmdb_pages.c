/* Writes an LMDB database with pages of another size than the system's, for tests/lab/test_provenance.py.
 *
 * Built with mdb.c and midl.c and -Dsysconf=page_bytes_or, so that LMDB takes its page size from the command line.
 *
 * lmdb_pages PATH PAGE_BYTES KEY_BYTES EVERY APPEND < lengths of values, one per line
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef sysconf
#include <unistd.h>

#include "lmdb.h"

static long page_bytes;

long page_bytes_or(int name) { return name == _SC_PAGESIZE ? page_bytes : sysconf(name); }

static void check(int status, const char *what) {
    if (status != 0) {
        fprintf(stderr, "%s: %s\n", what, mdb_strerror(status));
        exit(1);
    }
}

int main(int count, char **arguments) {
    if (count != 6) return 2;
    page_bytes = atol(arguments[2]);
    int key_bytes = atoi(arguments[3]);
    long every = atol(arguments[4]), number = 0;
    unsigned int flags = atoi(arguments[5]) ? MDB_APPEND : 0;
    MDB_env *environment;
    MDB_txn *transaction = NULL;
    MDB_dbi database;
    check(mdb_env_create(&environment), "create");
    check(mdb_env_set_mapsize(environment, 1ul << 30), "map");
    check(mdb_env_open(environment, arguments[1], MDB_NOSUBDIR | MDB_NOSYNC, 0644), "open");
    char *value = calloc(1, 1 << 24), text[512];
    for (long length; scanf("%ld", &length) == 1; number++) {
        if (transaction == NULL) {
            check(mdb_txn_begin(environment, NULL, 0, &transaction), "begin");
            check(mdb_dbi_open(transaction, NULL, 0, &database), "database");
        }
        snprintf(text, sizeof text, "%0*ld", key_bytes, number);
        MDB_val key = {key_bytes, text}, data = {length, value};
        check(mdb_put(transaction, database, &key, &data, flags), "put");
        if ((number + 1) % every == 0) {
            check(mdb_txn_commit(transaction), "commit");
            transaction = NULL;
        }
    }
    if (transaction != NULL) check(mdb_txn_commit(transaction), "commit");
    mdb_env_close(environment);
    return 0;
}
