/* A stand-in for libnvidia-ml.so.1, driven by a scenario file; loaded by the real pynvml through LD_LIBRARY_PATH.
 *
 * It knows no GPU: every answer is looked up in the scenario as (gpu, key), and a key that is absent answers
 * NOT_SUPPORTED, as a driver does for what a model lacks. See README.md beside this file for the format.
 * Structures are laid out as the public NVML interface has them; nothing here is NVIDIA's code.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       TIMEOUT = 10, LOST = 15, RESET_REQUIRED = 16, GPU_NOT_FOUND = 28 };
enum { MAX_GPUS = 32, MAX_MIG = 8, MAX_EVENTS = 256, BUCKETS = 16384, KEY = 72, TEXT = 96, EPOCHS = 4 };
enum { SYS = -1, ANY = -2 };

/* ------------------------------------------------------------------ scenario */

typedef struct entry {
    struct entry *next;
    int gpu;
    char key[KEY];
    char text[TEXT];  /* as written, for names */
    double base, rate;
    uint64_t whole;   /* exact integer base */
    int error;        /* NVML return code, 0 = answers */
    int hang, slow_ms, stepped;
    char type;        /* field value type: d u l L s i */
} entry;

typedef struct { long serial; int gpu; unsigned long long type, data; unsigned gi, ci; } event;
typedef struct device { int gpu, mig, epoch; } device;
typedef struct { long after; unsigned long long types[MAX_GPUS]; int epochs[MAX_GPUS]; } event_set;
typedef struct { double at; int gpu, mig; } gpm_sample;

static entry *table[BUCKETS];
static entry *pool;
static int pool_used, pool_size;
static event events[MAX_EVENTS];
static int event_count;
static struct timespec loaded_mtime;
static long loaded_size = -1;
static const char *scenario_path, *calls_path;
static double checked_at;
static double born;
static int initialised;
static device devices[MAX_GPUS][EPOCHS], migs[MAX_GPUS][MAX_MIG];
static int gpm_samples, event_sets;

static double seconds(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static unsigned hash(int gpu, const char *key) {
    unsigned h = 2166136261u ^ (unsigned)(gpu + 7);
    for (; *key; key++) h = (h ^ (unsigned char)*key) * 16777619u;
    return h % BUCKETS;
}

static entry *find(int gpu, const char *key) {
    for (entry *e = table[hash(gpu, key)]; e; e = e->next)
        if (e->gpu == gpu && !strcmp(e->key, key)) return e;
    return NULL;
}

static void parse_value(entry *e, char *text) {
    char *slow = strstr(text, " slow=");
    if (slow) { e->slow_ms = atoi(slow + 6); *slow = 0; }
    snprintf(e->text, TEXT, "%s", text);
    if (text[0] == '!') { e->error = atoi(text + 1); return; }
    if (!strcmp(text, "hang")) { e->hang = 1; return; }
    e->type = 'L';
    if (text[0] == '@') { e->stepped = 1; return; }
    if (text[0] && strchr("duLlsi", text[0]) && (text[1] == '-' || (text[1] >= '0' && text[1] <= '9')))
        e->type = *text++;
    char *end;
    e->base = strtod(text, &end);
    e->whole = text[0] == '-' ? (uint64_t)strtoll(text, NULL, 0) : strtoull(text, NULL, 0);
    if (*end == '+') e->rate = strtod(end + 1, NULL);
}

static void parse_line(char *line) {
    char scope[32], key[KEY];
    int used = 0;
    line[strcspn(line, "\r\n")] = 0;
    if (sscanf(line, "%31s %71s %n", scope, key, &used) < 2 || scope[0] == '#') return;
    if (!strcmp(scope, "event")) {
        event *v = &events[event_count];
        v->serial = atol(key);
        if (event_count < MAX_EVENTS && sscanf(line + used, "%d %lli %lli %i %i", &v->gpu, (long long *)&v->type,
                                               (long long *)&v->data, (int *)&v->gi, (int *)&v->ci) == 5)
            event_count++;
        return;
    }
    if (pool_used == pool_size) return;
    entry *e = &pool[pool_used++];
    memset(e, 0, sizeof *e);
    e->gpu = !strcmp(scope, "sys") ? SYS : !strcmp(scope, "*") ? ANY : atoi(scope);
    snprintf(e->key, KEY, "%s", key);
    parse_value(e, line + used);
    unsigned h = hash(e->gpu, e->key);
    e->next = table[h];
    table[h] = e;
}

static void load(const char *path) {
    FILE *f = fopen(path, "r");
    char line[512];
    int lines = 1;
    if (!f) return;
    while (fgets(line, sizeof line, f)) lines++;
    rewind(f);
    memset(table, 0, sizeof table);
    free(pool);
    pool = calloc((size_t)lines, sizeof *pool);
    pool_size = pool ? lines : 0;
    pool_used = event_count = 0;
    while (fgets(line, sizeof line, f)) parse_line(line);
    fclose(f);
}

/* The file is looked at again when 2 ms have passed since the last look; the writer waits longer than that. */
static void refresh(void) {
    struct stat s;
    double now = seconds(CLOCK_MONOTONIC);
    if (!born) {
        born = seconds(CLOCK_REALTIME);
        scenario_path = getenv("NVML_STANDIN_SCENARIO");
        calls_path = getenv("NVML_STANDIN_CALLS");
    }
    if (!scenario_path || (checked_at && now - checked_at < 0.002)) return;
    checked_at = now;
    if (stat(scenario_path, &s)) return;
    if (s.st_mtim.tv_sec == loaded_mtime.tv_sec && s.st_mtim.tv_nsec == loaded_mtime.tv_nsec && s.st_size == loaded_size)
        return;
    loaded_mtime = s.st_mtim;
    loaded_size = s.st_size;
    load(scenario_path);
}

static void note(const char *what, int gpu, int code) {
    if (!calls_path) return;
    FILE *f = fopen(calls_path, "a");
    if (!f) return;
    fprintf(f, "%s %d %d\n", what, gpu, code);
    fclose(f);
}

static entry *look(int gpu, const char *key) {
    entry *e = find(gpu, key);
    return e || gpu < 0 ? e : find(ANY, key);
}

static double since(void) {
    entry *e = find(SYS, "since");
    return seconds(CLOCK_REALTIME) - (e ? e->base : born);
}

static int settle(entry *e) { /* what an entry does before it answers */
    if (!e) return NOT_SUPPORTED;
    if (e->slow_ms) usleep((useconds_t)e->slow_ms * 1000u);
    while (e->hang) pause();
    return e->error;
}

/* "@0:1,5:0,7.5:1": 1 from `since` on, 0 from five seconds later, 1 again after 7.5 */
static double step(entry *e) {
    double now = since(), value = 0;
    const char *t = e->text + 1;
    while (*t) {
        char *end;
        double at = strtod(t, &end);
        if (*end != ':') break;
        double then = strtod(end + 1, &end);
        if (at <= now) value = then;
        t = *end == ',' ? end + 1 : end;
    }
    return value;
}

static double real(entry *e) { return e->stepped ? step(e) : e->rate ? e->base + e->rate * since() : e->base; }

static uint64_t whole(entry *e) {
    return e->stepped ? (uint64_t)step(e) : e->rate ? (uint64_t)(e->base + e->rate * since()) : e->whole;
}

/* ------------------------------------------------------------------ devices */

/* With a GPU lost a driver still answers these as if all were well. */
static const char *still_answer[] = { "energy", "pstate", "reasons", "power.limit", "power.min", "power.max",
    "power.default", "power.enforced", "pcie.gen", "pcie.width", "pcie.gen_max", "pcie.width_max", NULL };

static int flagged(int gpu, const char *key) {
    entry *e = look(gpu, key);
    return e ? (int)e->base : 0;
}

/* A GPU that was reset (`epoch` counts resets) has another handle; the old one answers as if the GPU were lost. */
static int epoch(int gpu) { return flagged(gpu, "epoch") % EPOCHS; }

static int stale(device *d) { return d->epoch >= 0 && d->epoch != epoch(d->gpu); }

static int trouble(int gpu, const char *key) {
    int err = flagged(gpu, "err"), lost = flagged(gpu, "lost") ? LOST : flagged(gpu, "reset") ? RESET_REQUIRED : 0;
    if (err) return err;
    if (!lost) return OK;
    for (const char **k = still_answer; *k; k++)
        if (!strcmp(*k, key)) return OK;
    return lost;
}

static int at(device *d, const char *key, entry **out) {
    char full[KEY];
    refresh();
    if (!initialised) return UNINITIALIZED;
    if (!d) return INVALID;
    if (d->mig >= 0) { snprintf(full, KEY, "mig.%d.%s", d->mig, key); key = full; }
    int code = stale(d) ? LOST : trouble(d->gpu, key);
    if (!code && d->mig >= 0) { /* a handle of an instance that was destroyed */
        char made[KEY];
        snprintf(made, KEY, "mig.%d.gi", d->mig);
        if (!look(d->gpu, made)) code = NOT_FOUND;
    }
    if (code == NOT_FOUND) { note(key, d->gpu, code); return code; }
    if (!code) { *out = look(d->gpu, key); code = settle(*out); }
    note(key, d->gpu, code);
    return code;
}

static int get_uint(device *d, const char *key, unsigned *out) {
    entry *e;
    int code = at(d, key, &e);
    if (!code) *out = (unsigned)whole(e);
    return code;
}

static int get_u64(device *d, const char *key, unsigned long long *out) {
    entry *e;
    int code = at(d, key, &e);
    if (!code) *out = whole(e);
    return code;
}

static int get_text(device *d, const char *key, char *out, unsigned size) {
    entry *e;
    int code = at(d, key, &e);
    if (!code) snprintf(out, size, "%s", e->text);
    return code;
}

static char *name_of(char *buffer, const char *form, ...) {
    va_list list;
    va_start(list, form);
    vsnprintf(buffer, KEY, form, list);
    va_end(list);
    return buffer;
}

static int sys(const char *key, entry **out) {
    refresh();
    *out = find(SYS, key);
    int code = *out ? settle(*out) : OK;
    note(key, SYS, code);
    return code;
}

int nvmlInitWithFlags(unsigned flags) {
    entry *e;
    (void)flags;
    int code = sys("init", &e);
    if (code) return code;
    const char *node = getenv("NVML_STANDIN_DEVICE"); /* as a driver's device file: open as long as the process lives */
    static int held = -1;
    if (node && held < 0) held = open(node, O_RDONLY);
    for (int g = 0; g < MAX_GPUS; g++) {
        for (int e = 0; e < EPOCHS; e++) devices[g][e] = (device){g, -1, e};
        for (int m = 0; m < MAX_MIG; m++) migs[g][m] = (device){g, m, -1};
    }
    initialised = 1;
    return OK;
}

int nvmlShutdown(void) {
    char line[64];
    snprintf(line, sizeof line, "shutdown:samples=%d,sets=%d", gpm_samples, event_sets);
    note(line, SYS, OK);
    initialised = 0;
    return OK;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    entry *e;
    int code = sys("driver", &e);
    if (code || !e) return code ? code : 999;
    snprintf(out, size, "%s", e->text);
    return OK;
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    entry *e;
    int code = sys("nvml", &e);
    if (code || !e) return code ? code : 999;
    snprintf(out, size, "%s", e->text);
    return OK;
}

static int gpus(void) {
    entry *e = find(SYS, "gpus");
    return e ? (int)e->base : 0;
}

static int present(int g) { return g >= 0 && g < gpus() && !flagged(g, "gone"); }

int nvmlDeviceGetCount_v2(unsigned *out) {
    entry *e;
    int code = sys("count", &e);
    if (code) return code;
    *out = 0;
    for (int g = 0; g < gpus(); g++) *out += (unsigned)present(g);
    return OK;
}

static int attach(int g, device **out) {
    entry *e = look(g, "handle");
    int code = e ? settle(e) : OK;
    note("handle", g, code);
    if (!code) *out = &devices[g][epoch(g)];
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    refresh();
    if (!initialised) return UNINITIALIZED;
    for (int g = 0; g < gpus(); g++)
        if (present(g) && index-- == 0) return attach(g, out);
    return INVALID;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device **out) {
    refresh();
    if (!initialised) return UNINITIALIZED;
    for (int g = 0; g < gpus(); g++) {
        entry *e = look(g, "bus");
        if (!e || !present(g)) continue;
        unsigned a, b, c, x, y, z;
        if (sscanf(bus, "%x:%x:%x", &a, &b, &c) == 3 && sscanf(e->text, "%x:%x:%x", &x, &y, &z) == 3 && a == x && b == y && c == z)
            return attach(g, out);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(device *d, char *out, unsigned n) { return get_text(d, "uuid", out, n); }
int nvmlDeviceGetName(device *d, char *out, unsigned n) { return get_text(d, "name", out, n); }
int nvmlDeviceGetSerial(device *d, char *out, unsigned n) { return get_text(d, "serial", out, n); }
int nvmlDeviceGetVbiosVersion(device *d, char *out, unsigned n) { return get_text(d, "vbios", out, n); }

typedef struct { char legacy[16]; unsigned domain, bus, dev, id, sub; char text[32]; } pci;

int nvmlDeviceGetPciInfo_v3(device *d, pci *out) {
    entry *e;
    int code = at(d, "bus", &e);
    if (code) return code;
    memset(out, 0, sizeof *out);
    sscanf(e->text, "%x:%x:%x", &out->domain, &out->bus, &out->dev);
    snprintf(out->legacy, 16, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->dev & 0xff);
    snprintf(out->text, 32, "%08X:%02X:%02X.0", out->domain, out->bus, out->dev);
    return OK;
}

/* ------------------------------------------------------------------ plain readings */

static const char *clock_names[] = { "graphics", "sm", "mem", "video" };

static int clock_of(device *d, const char *kind, unsigned which, unsigned *out) {
    char key[KEY];
    return which > 3 ? INVALID : get_uint(d, name_of(key, "%s.%s", kind, clock_names[which]), out);
}

int nvmlDeviceGetClockInfo(device *d, unsigned w, unsigned *o) { return clock_of(d, "clock", w, o); }
int nvmlDeviceGetMaxClockInfo(device *d, unsigned w, unsigned *o) { return clock_of(d, "clock_max", w, o); }
int nvmlDeviceGetApplicationsClock(device *d, unsigned w, unsigned *o) { return clock_of(d, "clock_app", w, o); }
int nvmlDeviceGetCurrentClocksEventReasons(device *d, unsigned long long *o) { return get_u64(d, "reasons", o); }
int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, unsigned long long *o) { return get_u64(d, "reasons", o); }
int nvmlDeviceGetPerformanceState(device *d, unsigned *o) { return get_uint(d, "pstate", o); }
int nvmlDeviceGetPowerUsage(device *d, unsigned *o) { return get_uint(d, "power", o); }
int nvmlDeviceGetPowerManagementLimit(device *d, unsigned *o) { return get_uint(d, "power.limit", o); }
int nvmlDeviceGetPowerManagementDefaultLimit(device *d, unsigned *o) { return get_uint(d, "power.default", o); }
int nvmlDeviceGetEnforcedPowerLimit(device *d, unsigned *o) { return get_uint(d, "power.enforced", o); }
int nvmlDeviceGetTotalEnergyConsumption(device *d, unsigned long long *o) { return get_u64(d, "energy", o); }
int nvmlDeviceGetCurrPcieLinkGeneration(device *d, unsigned *o) { return get_uint(d, "pcie.gen", o); }
int nvmlDeviceGetCurrPcieLinkWidth(device *d, unsigned *o) { return get_uint(d, "pcie.width", o); }
int nvmlDeviceGetMaxPcieLinkGeneration(device *d, unsigned *o) { return get_uint(d, "pcie.gen_max", o); }
int nvmlDeviceGetMaxPcieLinkWidth(device *d, unsigned *o) { return get_uint(d, "pcie.width_max", o); }
int nvmlDeviceGetPcieReplayCounter(device *d, unsigned *o) { return get_uint(d, "pcie.replays", o); }
int nvmlDeviceGetPersistenceMode(device *d, unsigned *o) { return get_uint(d, "persistence", o); }
int nvmlDeviceGetRetiredPagesPendingStatus(device *d, unsigned *o) { return get_uint(d, "retired.pending", o); }

int nvmlDeviceGetPcieThroughput(device *d, unsigned which, unsigned *out) {
    return get_uint(d, which ? "pcie.rx_kb" : "pcie.tx_kb", out);
}

int nvmlDeviceGetPowerManagementLimitConstraints(device *d, unsigned *lo, unsigned *hi) {
    int code = get_uint(d, "power.min", lo);
    return code ? code : get_uint(d, "power.max", hi);
}

typedef struct { unsigned long long reference, time; } violation;

int nvmlDeviceGetViolationStatus(device *d, unsigned which, violation *out) {
    char key[KEY];
    return get_u64(d, name_of(key, "violation.%u", which), &out->time);
}

int nvmlDeviceGetTemperature(device *d, unsigned which, unsigned *out) {
    (void)which;
    return get_uint(d, "temp", out);
}

typedef struct { unsigned version, sensor; int value; } temperature_v1;
int nvmlDeviceGetTemperatureV(device *d, temperature_v1 *out) { return get_uint(d, "temp", (unsigned *)&out->value); }

typedef struct { unsigned version; int value; } margin_v1;
int nvmlDeviceGetMarginTemperature(device *d, margin_v1 *out) { return get_uint(d, "temp.margin", (unsigned *)&out->value); }

int nvmlDeviceGetTemperatureThreshold(device *d, unsigned which, unsigned *out) {
    char key[KEY];
    return get_uint(d, name_of(key, "threshold.%u", which), out);
}

typedef struct { unsigned gpu, memory; } utilization;

int nvmlDeviceGetUtilizationRates(device *d, utilization *out) {
    int code = get_uint(d, "util.gpu", &out->gpu);
    return code ? code : get_uint(d, "util.memory", &out->memory);
}

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;

int nvmlDeviceGetMemoryInfo(device *d, memory_v1 *out) {
    int code = get_u64(d, "mem.total", &out->total);
    if (!code) code = get_u64(d, "mem.used", &out->used);
    if (!code) out->free = out->total - out->used;
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *out) {
    int code = get_u64(d, "mem.total", &out->total);
    if (!code) code = get_u64(d, "mem.used", &out->used);
    if (!code) code = get_u64(d, "mem.reserved", &out->reserved);
    if (!code) out->free = out->total - out->used - out->reserved;
    return code;
}

int nvmlDeviceGetEccMode(device *d, unsigned *now, unsigned *pending) {
    int code = get_uint(d, "ecc.mode", now);
    return code ? code : get_uint(d, "ecc.pending", pending);
}

int nvmlDeviceGetTotalEccErrors(device *d, unsigned kind, unsigned scope, unsigned long long *out) {
    char key[KEY];
    return get_u64(d, name_of(key, "ecc.%u.%u", kind, scope), out);
}

int nvmlDeviceGetMemoryErrorCounter(device *d, unsigned kind, unsigned scope, unsigned place, unsigned long long *out) {
    char key[KEY];
    return get_u64(d, name_of(key, "ecc.%u.%u.%u", kind, scope, place), out);
}

typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } sram_v1;
int nvmlDeviceGetSramEccErrorStatus(device *d, sram_v1 *out) { return get_uint(d, "sram.exceeded", &out->exceeded); }

int nvmlDeviceGetRetiredPages(device *d, unsigned cause, unsigned *count, unsigned long long *out) {
    char key[KEY];
    unsigned pages = 0;
    int code = get_uint(d, name_of(key, "retired.%u", cause), &pages);
    if (code) return code;
    if (*count < pages) { *count = pages; return INSUFFICIENT_SIZE; }
    for (unsigned i = 0; out && i < pages; i++) out[i] = 4096ull * i;
    *count = pages;
    return OK;
}

int nvmlDeviceGetRemappedRows(device *d, unsigned *cor, unsigned *unc, unsigned *pending, unsigned *failed) {
    int code = get_uint(d, "remap.cor", cor);
    if (!code) code = get_uint(d, "remap.unc", unc);
    if (!code) code = get_uint(d, "remap.pending", pending);
    return code ? code : get_uint(d, "remap.failed", failed);
}

int nvmlDeviceGetRowRemapperHistogram(device *d, unsigned *out) {
    static const char *parts[] = { "bank.max", "bank.high", "bank.partial", "bank.low", "bank.none" };
    int code = OK;
    for (int i = 0; i < 5 && !code; i++) code = get_uint(d, parts[i], &out[i]);
    return code;
}

int nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *out) {
    char key[KEY];
    if (link >= (unsigned)(d ? flagged(d->gpu, "links") : 0)) return INVALID;
    return get_uint(d, name_of(key, "link.%u", link), out);
}

int nvmlDeviceGetNvLinkErrorCounter(device *d, unsigned link, unsigned which, unsigned long long *out) {
    char key[KEY];
    if (link >= (unsigned)(d ? flagged(d->gpu, "links") : 0)) return INVALID;
    if (look(d->gpu, name_of(key, "link_errors.%u.%u", which, link))) return get_u64(d, key, out);
    return get_u64(d, name_of(key, "link_errors.%u", which), out);
}

/* A key with the link's number, else the one for all links. */
static int of_link(device *d, const char *what, unsigned link, char *key) {
    if (!d || link >= (unsigned)flagged(d->gpu, "links")) return INVALID;
    if (!look(d->gpu, name_of(key, "%s.%u", what, link))) name_of(key, "%s", what);
    return OK;
}

int nvmlDeviceGetNvLinkVersion(device *d, unsigned link, unsigned *out) {
    char key[KEY];
    int code = of_link(d, "link_version", link, key);
    return code ? code : get_uint(d, key, out);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(device *d, unsigned link, unsigned *out) {
    char key[KEY];
    int code = of_link(d, "link_remote", link, key);
    return code ? code : get_uint(d, key, out);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device *d, unsigned link, pci *out) {
    char key[KEY], text[TEXT];
    int code = of_link(d, "link_remote_bus", link, key);
    if (!code) code = get_text(d, key, text, TEXT);
    if (code) return code;
    memset(out, 0, sizeof *out);
    sscanf(text, "%x:%x:%x", &out->domain, &out->bus, &out->dev);
    return OK;
}

typedef struct { unsigned char cluster[16]; int status; unsigned clique, state; } fabric_v1;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique, state, health; } fabric_v2;

int nvmlDeviceGetGpuFabricInfo(device *d, fabric_v1 *out) {
    unsigned byte = 0;
    int code = get_uint(d, "fabric.state", &out->state);
    if (!code && !get_uint(d, "fabric.cluster", &byte)) memset(out->cluster, (int)byte, 16);
    if (!code) get_uint(d, "fabric.clique", &out->clique);
    if (!code) get_uint(d, "fabric.status", (unsigned *)&out->status);
    return code;
}

int nvmlDeviceGetGpuFabricInfoV(device *d, fabric_v2 *out) {
    fabric_v1 old = {0};
    int code = nvmlDeviceGetGpuFabricInfo(d, &old);
    if (code) return code;
    memcpy(out->cluster, old.cluster, 16);
    out->status = old.status;
    out->clique = old.clique;
    out->state = old.state;
    get_uint(d, "fabric.health", &out->health);
    return OK;
}

typedef struct { unsigned version; unsigned char guid[16]; char serial[16]; unsigned char slot, tray, host, peer, module; } platform_v2;

int nvmlDeviceGetPlatformInfo(device *d, platform_v2 *out) {
    static const char *parts[] = { "platform.slot", "platform.tray", "platform.host", "platform.peer", "platform.module" };
    unsigned char *into[] = { &out->slot, &out->tray, &out->host, &out->peer, &out->module };
    char serial[TEXT];
    unsigned value;
    if (out->version >> 24 != 2) return 25;
    int code = get_text(d, "platform.serial", serial, TEXT);
    if (code) return code;
    memset(out->guid, 0, 16);
    memset(out->serial, 0, 16);
    memcpy(out->serial, serial, strlen(serial) < 16 ? strlen(serial) : 16);
    for (int i = 0; i < 5; i++) *into[i] = get_uint(d, parts[i], &value) ? 0 : (unsigned char)value;
    return OK;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;

/* `pids` lists them ("4321,4322"); `processes` says only how many there are. */
static int running_of(device *d, unsigned *pids, unsigned most, unsigned *count) {
    char text[TEXT], *t = text;
    char key[KEY];
    name_of(key, d && d->mig >= 0 ? "mig.%d.pids" : "pids", d ? d->mig : 0);
    if (!d || !look(d->gpu, key)) {
        int code = get_uint(d, "processes", count);
        for (unsigned i = 0; !code && i < *count && i < most; i++) pids[i] = 1000 + i;
        return code;
    }
    int code = get_text(d, "pids", text, TEXT);
    for (*count = 0; !code && *t >= '0' && *t <= '9' && *count < most; t += *t == ',') pids[(*count)++] = (unsigned)strtoul(t, &t, 10);
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *count, process *out) {
    unsigned running = 0, pids[64];
    int code = running_of(d, pids, 64, &running);
    if (code) return code;
    if (*count < running) { *count = running; return INSUFFICIENT_SIZE; }
    for (unsigned i = 0; out && i < running; i++)
        out[i] = (process){i < 64 ? pids[i] : 1000 + i, 1ull << 30, 0xffffffffu, 0xffffffffu};
    *count = running;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v2(device *d, unsigned *count, process *out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(d, count, out);
}

/* ------------------------------------------------------------------ MIG */

int nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *pending) {
    int code = get_uint(d, "mig", now);
    *pending = *now;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *out) {
    *out = MAX_MIG - 1;
    return d ? OK : INVALID;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **out) {
    char key[KEY];
    refresh();
    if (!d || index >= MAX_MIG || !look(d->gpu, name_of(key, "mig.%u.gi", index))) return NOT_FOUND;
    *out = &migs[d->gpu][index];
    return OK;
}

int nvmlDeviceGetGpuInstanceId(device *d, unsigned *out) { return get_uint(d, "gi", out); }

/* ------------------------------------------------------------------ field values */

typedef union { double d; unsigned u; unsigned long long L; long long s; int i; } value;
typedef struct { unsigned id, scope; int64_t stamp, latency; unsigned type, code; value v; } field_value;

static void put(field_value *f, entry *e) {
    switch (e->type) {
    case 'd': f->type = 0; f->v.d = real(e); break;
    case 'u': f->type = 1; f->v.u = (unsigned)whole(e); break;
    case 'l': f->type = 2; f->v.L = whole(e); break;
    case 's': f->type = 4; f->v.s = (long long)whole(e); break;
    case 'i': f->type = 5; f->v.i = (int)whole(e); break;
    default: f->type = 3; f->v.L = whole(e);
    }
}

int nvmlDeviceGetFieldValues(device *d, int count, field_value *all) {
    char key[KEY];
    refresh();
    if (!initialised) return UNINITIALIZED;
    if (!d) return INVALID;
    int code = flagged(d->gpu, "err");
    note("fields", d->gpu, code);
    if (code) return code;
    for (int i = 0; i < count; i++) {
        field_value *f = &all[i];
        entry *e = look(d->gpu, name_of(key, "fi.%u.%u", f->id, f->scope));
        if (!e && !(e = look(d->gpu, name_of(key, "fi.%u", f->id)))) e = NULL;
        if (!e && f->id == 165 && !look(d->gpu, "no_link_fields")) { /* the state of a link, under the other call's key */
            f->code = f->scope >= (unsigned)flagged(d->gpu, "links") ? INVALID : OK;
            if (f->code) { note(key, d->gpu, (int)f->code); continue; }
            e = look(d->gpu, name_of(key, "link.%u", f->scope));
            if (e && e->type == 'L') e->type = 'u';
        }
        f->code = (unsigned)(stale(d) ? LOST : trouble(d->gpu, key));
        if (!f->code) f->code = (unsigned)settle(e);
        note(key, d->gpu, (int)f->code);
        if (!f->code) put(f, e);
    }
    return OK;
}

/* ------------------------------------------------------------------ GPM */

typedef struct { unsigned id, code; double value; const char *names[3]; } gpm_metric;
typedef struct { unsigned version, count; gpm_sample *first, *second; gpm_metric metrics[477]; } gpm_get;
typedef struct { unsigned version, supported; } gpm_support;

int nvmlGpmQueryDeviceSupport(device *d, gpm_support *out) { return get_uint(d, "gpm", &out->supported); }

int nvmlGpmSampleAlloc(gpm_sample **out) {
    *out = calloc(1, sizeof **out);
    gpm_samples += *out != NULL;
    return *out ? OK : 20;
}

int nvmlGpmSampleFree(gpm_sample *s) {
    gpm_samples -= s != NULL;
    free(s);
    return OK;
}

static int sample(device *d, int mig, gpm_sample *out) {
    unsigned unused;
    int code = get_uint(d, "gpm.sample", &unused);
    if (!code) *out = (gpm_sample){seconds(CLOCK_MONOTONIC), d->gpu, mig};
    return code;
}

int nvmlGpmSampleGet(device *d, gpm_sample *out) { return sample(d, -1, out); }

int nvmlGpmMigSampleGet(device *d, unsigned gi, gpm_sample *out) {
    char key[KEY];
    for (int m = 0; d && m < MAX_MIG; m++) {
        entry *e = look(d->gpu, name_of(key, "mig.%d.gi", m));
        if (e && (unsigned)e->base == gi) return sample(d, m, out);
    }
    return NOT_FOUND;
}

int nvmlGpmMetricsGet(gpm_get *g) {
    char key[KEY];
    if (!g->first || !g->second || g->second->at <= g->first->at) return INVALID;
    for (unsigned i = 0; i < g->count; i++) {
        gpm_metric *m = &g->metrics[i];
        gpm_sample *s = g->second;
        name_of(key, s->mig < 0 ? "gpm.%1$u" : "mig.%2$d.gpm.%1$u", m->id, s->mig);
        entry *e = look(s->gpu, key);
        m->code = (unsigned)settle(e);
        if (!m->code) m->value = real(e);
    }
    return OK;
}

/* ------------------------------------------------------------------ events */

int nvmlDeviceGetSupportedEventTypes(device *d, unsigned long long *out) { return get_u64(d, "event_types", out); }

int nvmlEventSetCreate(event_set **out) {
    refresh();
    *out = calloc(1, sizeof **out);
    if (!*out) return 20;
    for (int i = 0; i < event_count; i++)
        if (events[i].serial > (*out)->after) (*out)->after = events[i].serial;
    event_sets++;
    return OK;
}

int nvmlEventSetFree(event_set *s) {
    event_sets -= s != NULL;
    free(s);
    return OK;
}

int nvmlDeviceRegisterEvents(device *d, unsigned long long types, event_set *s) {
    unsigned long long supported = 0;
    int code = get_u64(d, "event_types", &supported);
    if (code) return code;
    if (types & ~supported) return NOT_SUPPORTED;
    s->types[d->gpu] = types | (s->epochs[d->gpu] == d->epoch ? s->types[d->gpu] : 0);
    s->epochs[d->gpu] = d->epoch;
    return OK;
}

typedef struct { device *d; unsigned long long type, data; unsigned gi, ci; } event_data;

int nvmlEventSetWait_v2(event_set *s, event_data *out, unsigned timeout_ms) {
    refresh();
    for (int i = 0; i < event_count; i++) {
        event *v = &events[i];
        if (v->serial <= s->after || v->gpu < 0 || v->gpu >= MAX_GPUS || !(s->types[v->gpu] & v->type)) continue;
        if (s->epochs[v->gpu] != epoch(v->gpu)) continue;
        s->after = v->serial;
        *out = (event_data){&devices[v->gpu][epoch(v->gpu)], v->type, v->data, v->gi, v->ci};
        return OK;
    }
    if (timeout_ms) usleep(timeout_ms * 1000u);
    return TIMEOUT;
}
