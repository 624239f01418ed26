/* Stands in for NVIDIA's management library: the functions that Footplate calls, with what a test says in variables of
 * the environment. A figure whose number is in FAILING answers with that number (of nvmlReturn_t) instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static int board = 1, part = 2;

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : atoi(text);
}

/* A part of a divided GPU does not tell `own` figures: nvmlDeviceGet… answers NOT_SUPPORTED (3) for its handle. */
static int refusal(void *device, int own) {
    if (device != &board && device != &part) return 2; /* INVALID_ARGUMENT */
    if (own && device == &part) return 3;
    return setting("FAILING", 0);
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return setting("INIT", 0); }

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "error %d", code);
    return text;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    const char *known = getenv("UUID");
    if (known == NULL || strcmp(uuid, known) != 0) return 6; /* NOT_FOUND */
    *device = strncmp(uuid, "MIG-", 4) == 0 ? &part : &board;
    return 0;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **parent) {
    if (device != &part) return 2;
    *parent = &board;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    rates->gpu = 83;
    rates->memory = 41;
    return refusal(device, 1);
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    memory->total = device == &part ? 20ULL << 30 : 140ULL << 30;
    memory->used = device == &part ? 5ULL << 30 : 70ULL << 30;
    memory->free = memory->total - memory->used;
    return refusal(device, 0);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
    *milliwatts = 612345;
    return refusal(device, 1);
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *milliwatts) {
    *milliwatts = 700000;
    return refusal(device, 1);
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *celsius) {
    *celsius = sensor == 0 ? 64 : 0;
    return refusal(device, 1);
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned int *megahertz) {
    *megahertz = type == 1 ? 1980 : 0;
    return refusal(device, 1);
}

#ifndef OLD /* drivers before 535 lack it */
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    *reasons = (unsigned long long)setting("REASONS", 0);
    return refusal(device, 1);
}
#endif
