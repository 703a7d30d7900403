/* What changes: utilisation, samples, memory, power, energy, temperature, clocks, reasons, fields, PCIe. */
#include "sim.h"

#include <math.h>
#include <stddef.h>

union value {
    double real;
    unsigned number;
    unsigned long long large;
};

struct utilisation {
    unsigned gpu, memory;
};

struct sample {
    unsigned long long stamp_us;
    union value value;
};

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct temperature {
    unsigned version;
    int sensor, celsius;
};

struct field {
    unsigned id, scope;
    long long stamp_us, latency_us;
    unsigned type;
    int code;
    union value value;
};

enum { AS_NUMBER = 1, AS_LARGE = 3 };

static unsigned whole(double value)
{
    return value >= 4294967295.0 ? ~0u : value <= 0 ? 0 : (unsigned)(value + 0.5);
}

static bool shares_time(const struct device *device)
{
    return device->parent || (device->mig && !device->mig_parent_util);
}

DEVICE_API(nvmlDeviceGetUtilizationRates, (struct device *device, struct utilisation *into), (device, into))
{
    enum function self = F_nvmlDeviceGetUtilizationRates;
    int64_t now = now_ns();
    RETURN_IF(shares_time(device), NOT_SUPPORTED);
    into->gpu = whole(altered(self, 0, device, now, mean(device, UTIL, now - sim.util_ns, now)));
    into->memory = whole(altered(self, 1, device, now, mean(device, MEM, now - sim.util_ns, now)));
    return OK;
}

static bool sampled_key(int type, enum key *key, double *scale)
{
    *scale = type == 0 ? 1000.0 : 1.0;
    switch (type) {
    case 0: *key = POWER; return true;
    case 1: *key = UTIL; return true;
    case 2: *key = MEM; return true;
    case 5: *key = SM_MHZ; return true;
    case 6: *key = MEM_MHZ; return true;
    default: return false;
    }
}

static int64_t period_end(int64_t number)
{
    return number * 1000000000 / sim.sample_hz;
}

/* The sample of a period, unless it is old, or idle and such are not kept. */
static bool take_sample(const struct device *device, int type, int64_t number, unsigned long long seen_us,
                        struct sample *into)
{
    enum key key = UTIL;
    double scale = 1.0;
    sampled_key(type, &key, &scale);
    int64_t end = period_end(number), start = period_end(number - 1);
    if (!sim.sample_idle && mean(device, UTIL, start, end) <= 0)
        return false;
    double value = altered(F_nvmlDeviceGetSamples, type, device, end, scale * mean(device, key, start, end));
    *into = (struct sample){.stamp_us = (unsigned long long)((sim.stamp_base_ns + end) / 1000)};
    into->value.number = whole(value);
    return into->stamp_us > seen_us;
}

DEVICE_API(nvmlDeviceGetSamples,
           (struct device *device, int type, unsigned long long seen_us, unsigned *value_type, unsigned *count,
            struct sample *into),
           (device, type, seen_us, value_type, count, into))
{
    enum key key;
    double scale;
    unsigned found = 0, room = *count;
    int64_t newest = now_ns() * sim.sample_hz / 1000000000, kept = sim.sample_buffer;
    if (period_end(newest + 1) <= now_ns())
        newest++;
    RETURN_IF(!sampled_key(type, &key, &scale) || ((key == UTIL || key == MEM) && shares_time(device)), NOT_SUPPORTED);
    int code = injected(F_nvmlDeviceGetSamples, type, device);
    RETURN_IF(code != OK, code);
    int64_t oldest = newest > kept ? newest - kept + 1 : 1;
    int64_t turn = sim.sample_ring && newest > kept ? (kept - oldest % kept) % kept : 0;
    for (int64_t i = 0; i <= newest - oldest; i++) {
        struct sample sample;
        int64_t number = oldest + (i + turn) % (newest - oldest + 1);
        if (!take_sample(device, type, number, seen_us, &sample))
            continue;
        if (into && found < room)
            into[found] = sample;
        found++;
    }
    RETURN_IF(!found, NOT_FOUND);
    *value_type = AS_NUMBER;
    *count = !into ? sim.sample_buffer : found < room ? found : room;
    return OK;
}

static unsigned long long used_bytes(const struct device *device, enum function function)
{
    int64_t now = now_ns();
    return (unsigned long long)altered(function, NO_PART, device, now, value_at(device, USED, now));
}

/* The older call counts what the driver keeps for itself as used. */
DEVICE_API(nvmlDeviceGetMemoryInfo, (struct device *device, struct memory *into), (device, into))
{
    into->total = device->memory;
    into->used = used_bytes(device, F_nvmlDeviceGetMemoryInfo) + device->reserved;
    into->free = into->total - into->used;
    return OK;
}

DEVICE_API(nvmlDeviceGetMemoryInfo_v2, (struct device *device, struct memory_v2 *into), (device, into))
{
    RETURN_IF(into->version != (sizeof *into | 2u << 24), VERSION_MISMATCH);
    into->total = device->memory;
    into->reserved = device->reserved;
    into->used = used_bytes(device, F_nvmlDeviceGetMemoryInfo_v2);
    into->free = into->total - into->reserved - into->used;
    return OK;
}

static int celsius(const struct device *device, enum function function, int sensor, double *into)
{
    RETURN_IF(device->parent || sensor != 0, INVALID_ARGUMENT);
    *into = altered(function, NO_PART, device, now_ns(), value_at(device, TEMP, now_ns()));
    return OK;
}

DEVICE_API(nvmlDeviceGetTemperature, (struct device *device, int sensor, unsigned *into), (device, sensor, into))
{
    double value = 0;
    int code = celsius(device, F_nvmlDeviceGetTemperature, sensor, &value);
    *into = whole(value);
    return code;
}

DEVICE_API(nvmlDeviceGetTemperatureV, (struct device *device, struct temperature *into), (device, into))
{
    double value = 0;
    RETURN_IF(into->version != (sizeof *into | 1u << 24), VERSION_MISMATCH);
    int code = celsius(device, F_nvmlDeviceGetTemperatureV, into->sensor, &value);
    into->celsius = (int)lround(value);
    return code;
}

static double milliwatts(const struct device *device, int64_t over_ns)
{
    return 1000.0 * mean(device, POWER, now_ns() - over_ns, now_ns());
}

static double millijoules(const struct device *device)
{
    int64_t at = sim.energy_ns ? now_ns() - now_ns() % sim.energy_ns : now_ns();
    double used = integral(device, POWER, at);
    if (device->energy_reset >= 0 && at >= device->energy_reset)
        return 1000.0 * device->energy_scale * (used - integral(device, POWER, device->energy_reset));
    return 1000.0 * device->energy_scale * used + device->energy_base;
}

DEVICE_API(nvmlDeviceGetPowerUsage, (struct device *device, unsigned *into), (device, into))
{
    RETURN_IF(device->parent, INVALID_ARGUMENT);
    double value = milliwatts(device, device->power_mean);
    *into = whole(altered(F_nvmlDeviceGetPowerUsage, NO_PART, device, now_ns(), value));
    return OK;
}

DEVICE_API(nvmlDeviceGetTotalEnergyConsumption, (struct device *device, unsigned long long *into), (device, into))
{
    enum function self = F_nvmlDeviceGetTotalEnergyConsumption;
    RETURN_IF(device->parent, INVALID_ARGUMENT);
    *into = (unsigned long long)llround(altered(self, NO_PART, device, now_ns(), millijoules(device)));
    return OK;
}

DEVICE_API(nvmlDeviceGetClockInfo, (struct device *device, int clock, unsigned *mhz), (device, clock, mhz))
{
    enum function self = F_nvmlDeviceGetClockInfo;
    RETURN_IF(device->parent || clock < 0 || clock > 3, INVALID_ARGUMENT);
    *mhz = whole(altered(self, clock, device, now_ns(), value_at(device, clock == 2 ? MEM_MHZ : SM_MHZ, now_ns())));
    return injected(self, clock, device);
}

#define REASONS_API(name) \
    DEVICE_API(name, (struct device *device, unsigned long long *reasons), (device, reasons)) \
    { \
        RETURN_IF(device->parent, INVALID_ARGUMENT); \
        *reasons = (unsigned long long)altered(F_##name, NO_PART, device, now_ns(), \
                                               value_at(device, REASONS, now_ns())); \
        return OK; \
    }

REASONS_API(nvmlDeviceGetCurrentClocksEventReasons)
REASONS_API(nvmlDeviceGetCurrentClocksThrottleReasons)

DEVICE_API(nvmlDeviceGetPcieThroughput, (struct device *device, int counter, unsigned *kilobytes),
           (device, counter, kilobytes))
{
    enum function self = F_nvmlDeviceGetPcieThroughput;
    int64_t now = now_ns();
    RETURN_IF(device->parent || (counter != 0 && counter != 1), INVALID_ARGUMENT);
    double value = mean(device, counter ? RX : TX, now - 20000000, now) / 1000.0;
    *kilobytes = whole(altered(self, counter, device, now, value));
    return OK;
}

static int field_value(const struct device *device, unsigned id, double *value, unsigned *type)
{
    int64_t now = now_ns();
    *type = AS_LARGE;
    switch (id) {
    case 83:
    case 191: *value = millijoules(device); return OK;
    case 185: *type = AS_NUMBER; *value = milliwatts(device, 1000000000); return OK;
    case 186: *type = AS_NUMBER; *value = milliwatts(device, 0); return OK;
    case 197: *type = AS_NUMBER; *value = fmod(floor(integral(device, TX, now)), 4294967296.0); return OK;
    case 198: *type = AS_NUMBER; *value = fmod(floor(integral(device, RX, now)), 4294967296.0); return OK;
    case 269: *value = 1e9 * integral(device, SW_THERMAL, now); return OK;
    case 270: *value = 1e9 * integral(device, HW_THERMAL, now); return OK;
    default: return NOT_SUPPORTED;
    }
}

DEVICE_API(nvmlDeviceGetFieldValues, (struct device *device, int count, struct field *fields), (device, count, fields))
{
    enum function self = F_nvmlDeviceGetFieldValues;
    RETURN_IF(count < 1 || !fields, INVALID_ARGUMENT);
    for (int i = 0; i < count; i++) {
        struct field *field = &fields[i];
        int part = (int)field->id;
        double value = 0;
        bool is_known_scope = field->scope == 0 || field->scope == ~0u;
        field->stamp_us = (sim.stamp_base_ns + now_ns()) / 1000;
        field->latency_us = 0;
        field->value.large = 0;
        field->code = device->parent ? INVALID_ARGUMENT : injected(self, part, device);
        if (field->code == OK)
            field->code = is_known_scope ? field_value(device, field->id, &value, &field->type) : NOT_SUPPORTED;
        if (field->code == OK)
            value = altered(self, part, device, now_ns(), value);
        if (field->code == OK && field->type == AS_NUMBER)
            field->value.number = whole(value);
        else if (field->code == OK)
            field->value.large = (unsigned long long)llround(value);
    }
    return OK;
}
